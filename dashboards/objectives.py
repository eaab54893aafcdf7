"""Service level objectives: what is promised to requests, how much of it was broken, and how fast.

Owns: the three objectives and the windows they are watched over. Must not know: alerts, dashboards. Pure.

A budget is what may be broken over thirty days. The error ratio of a window over the budget is the burn rate: at 1 the
budget lasts exactly as long as its thirty days, at 14.4 an hour takes 2 % of it. The pairs of windows, long to be sure
and short to be over when it is over, are those of Google's Site Reliability Workbook, "Alerting on SLOs".
"""

from collections.abc import Callable
from dataclasses import dataclass

from dashboards.names import Family
from dashboards.recording import RECORDED_PREFIX, Recording

WINDOWS = ("5m", "30m", "1h", "6h")

#: (burn rate, long window, short window)
BURNS = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))

#: An adapter's default deadline of an operation. Whoever sets a longer one raises what is derived from it.
OPERATION_DEADLINE_SECONDS = 30
GRACE_SECONDS = 3

#: Adapters that want a gateway and have none; ``draining`` and ``closed`` were asked for.
OUT = "connecting|unhealthy|unresponsive|dead|incompatible"


@dataclass(frozen=True)
class Objective:
    """One promise: the share ``target`` of what is counted is good; ``errors`` gives the rest for a window."""

    name: str
    title: str
    target: float
    errors: Callable[[str], str]

    @property
    def budget(self) -> float:
        """The share that may be broken."""
        return round(1 - self.target, 6)


ADAPTERS_OUT = Recording(
    "kvgate:adapters_out:ratio",
    f'sum by (cluster) ({RECORDED_PREFIX}gateway_state{{state=~"{OUT}"}})\n'
    f'/ sum by (cluster) ({RECORDED_PREFIX}gateway_state{{state!="closed"}})',
    Family({}, ("cluster",)),
)


def _slower_than(histogram: str, seconds: float) -> Callable[[str], str]:
    """The share of a histogram's observations over a bound it has, which may be written with or without a fraction."""
    bounds = "|".join(sorted({f"{seconds:g}", str(float(seconds))}))

    def errors(window: str) -> str:
        within = f'sum by (cluster) (rate({histogram}_bucket{{le=~"{bounds}"}}[{window}]))'
        return f"1 - {within} / (sum by (cluster) (rate({histogram}_count[{window}])) > 0)"

    return errors


OBJECTIVES = (
    Objective(
        "adapters_healthy",
        "adapters have their gateway",
        0.995,
        lambda window: f"avg_over_time({ADAPTERS_OUT.record}[{window}])",
    ),
    Objective(
        "lookups_in_time",
        "lookups take at most 0.2 s",
        0.999,
        _slower_than(RECORDED_PREFIX + "lookup_wait_seconds", 0.2),
    ),
    Objective(
        "operations_settled",
        f"operations settle by their deadline and {GRACE_SECONDS} s",
        0.9999,
        _slower_than(RECORDED_PREFIX + "operation_duration_seconds", OPERATION_DEADLINE_SECONDS + GRACE_SECONDS),
    ),
)

_SLO = {"slo": tuple(objective.name for objective in OBJECTIVES)}


def errors_record(window: str) -> str:
    """The name of the error ratios over a window, with label ``slo``."""
    return f"kvgate:slo_errors:ratio_{window}"


#: (objective's name, its rule), in the order in which they are evaluated; the ratio of adapters goes before them.
RECORDINGS: tuple[tuple[str, Recording], ...] = tuple(
    (objective.name, recording)
    for objective in OBJECTIVES
    for recording in (
        Recording("kvgate:slo_budget:ratio", f"vector({objective.budget:g})", Family(_SLO, ())),
        *(Recording(errors_record(window), objective.errors(window), Family(_SLO, ("cluster",))) for window in WINDOWS),
    )
)


def burning(objective: Objective) -> str:
    """True while the budget goes too fast, over a long and a short window."""
    return "\nor\n".join(
        "("
        + " and ".join(
            f'{errors_record(window)}{{slo="{objective.name}"}} > {burn:g} * {objective.budget:g}'
            for window in (long, short)
        )
        + ")"
        for burn, long, short in BURNS
    )
