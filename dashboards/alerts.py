"""Alerts, by harm: critical where requests suffer now, tickets for what can wait until morning.

Owns: what is alerted, when, and in which words. Must not know: how rules are written down. Pure.

A drain and a switch are an operator's own doing: neither pages, and a ticket says so only when one was forgotten. What
each alert means and what to do is in ``docs/runbook.md``, under its name.
"""

from dataclasses import dataclass
from enum import StrEnum

from dashboards.objectives import OBJECTIVES, OPERATION_DEADLINE_SECONDS, burning
from dashboards.recording import GATEWAYS, WITHOUT_SERVICE

RUNBOOK = "docs/runbook.md"


class Severity(StrEnum):
    """Who should look, and when."""

    CRITICAL = "critical"  # somebody, now: requests suffer
    TICKET = "ticket"  # somebody, by tomorrow


@dataclass(frozen=True)
class Alert:
    """One alert: it fires when ``expr`` has had a sample for ``hold``; ``summary`` says so in a line."""

    name: str
    severity: Severity
    expr: str
    hold: str
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        """Its entry in the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


_UNSETTLED_SECONDS = OPERATION_DEADLINE_SECONDS + 10
_NODE = "on (cluster, job, node, instance)"
_ENGINE = "by (cluster, node, model, engine)"
_HERE = "{{ $labels.engine }} ({{ $labels.model }}) on {{ $labels.node }}"
_AT = "{{ $labels.instance }} ({{ $labels.node }})"

CRITICAL = (
    Alert(
        "KvgateOperationUnsettled",
        Severity.CRITICAL,
        f"max {_ENGINE} (kvgate:adapter_oldest_pending_age_seconds) > {_UNSETTLED_SECONDS}",
        "1m",
        f"An operation of {_HERE} does not settle",
        "Its oldest operation is {{ $value | humanizeDuration }} old; the deadline is"
        f" {OPERATION_DEADLINE_SECONDS} s. Blocks and events that it holds are not given back to the engine.",
    ),
    Alert(
        "KvgateBlocksInDoubt",
        Severity.CRITICAL,
        f"sum {_ENGINE} (kvgate:adapter_doubtful_blocks) > 0",
        "1m",
        f"{{{{ $value }}}} blocks of {_HERE} are in doubt",
        "For a minute there have been blocks of operations that were given up while a copy of them ran, and it is not"
        " proven that none touches them any more. Until it is they are not given back to the engine.",
    ),
    Alert(
        "KvgateLoadVerificationsFail",
        Severity.CRITICAL,
        f"sum {_ENGINE} (increase(kvgate:adapter_failed_verifications_total[5m])) > 0",
        "10m",
        f"Loads of {_HERE} find another's bytes, again and again",
        "{{ $value | humanize }} chunks within 5 minutes were no longer what was granted when they had been copied."
        " They were not used: requests wait for loads and compute all the same.",
    ),
    Alert(
        "KvgateNodesWithoutService",
        Severity.CRITICAL,
        f"avg by (cluster) ({WITHOUT_SERVICE.record}) > 0.2",
        "5m",
        "{{ $value | humanizePercentage }} of the gateways of {{ $labels.cluster }} do not serve",
        "They are down, starting or unhealthy, and nobody drained them. Engines there compute every prompt.",
    ),
)

TICKETS = (
    Alert(
        "KvgateDown",
        Severity.TICKET,
        f"{GATEWAYS} == 0",
        "5m",
        f"The gateway {_AT} cannot be scraped",
        "It is not running, or not reachable. Engines of the node compute every prompt if it does not run.",
    ),
    Alert(
        "KvgateScrapeFailing",
        Severity.TICKET,
        "kvgate_scrape_success == 0",
        "5m",
        f"The core of the gateway {_AT} does not answer",
        "Its admin process does, and says that the core did not answer its scrapes: it hangs, or is gone.",
    ),
    Alert(
        "KvgateNotReady",
        Severity.TICKET,
        f"{WITHOUT_SERVICE.record} == 1 and {_NODE} kvgate_ready == 0",
        "5m",
        f"The gateway {_AT} runs and does not serve",
        "It is starting or unhealthy; it is not being drained. Engines of the node compute every prompt.",
    ),
    Alert(
        "KvgateRestartLoop",
        Severity.TICKET,
        "changes(kvgate_boot_timestamp_seconds[30m]) > 3",
        "0m",
        f"The gateway {_AT} starts again and again",
        "{{ $value }} starts within 30 minutes. Finished chunks outlive them; what was under way does not.",
    ),
    Alert(
        "KvgateDrainStuck",
        Severity.TICKET,
        'kvgate_state{state="draining"} == 1',
        "15m",
        f"The gateway {_AT} has been draining for 15 minutes",
        "A drain ends when nothing is in flight or at its deadline, 30 s unless another was given. New work is refused"
        " meanwhile.",
    ),
    Alert(
        "KvgateDrainCutWork",
        Severity.TICKET,
        'increase(kvgate_drains_total{outcome="deadline_exceeded"}[15m]) > 0',
        "0m",
        f"A drain of the gateway {_AT} cut work that was under way",
        "Its deadline came before stores and loads were done. They were settled and computed anew.",
    ),
    Alert(
        "KvgateDrainedLong",
        Severity.TICKET,
        'kvgate_state{state="drained"} == 1',
        "1h",
        f"The gateway {_AT} has been drained for an hour",
        "It serves nobody until it is resumed or restarted. Engines of the node compute every prompt.",
    ),
    Alert(
        "KvgateSwitchedOffLong",
        Severity.TICKET,
        "kvgate_switch_mode > 0",
        "1h",
        f"{{{{ $labels.scope }}}} {{{{ $labels.name }}}} of {_AT} has been {{{{ $labels.mode }}}} for an hour",
        "A switch lasts until it is taken back: restarts, drains and resumes do not end it.",
    ),
    Alert(
        "KvgateAdapterOut",
        Severity.TICKET,
        f'sum {_ENGINE[:-1]}, state) (kvgate:adapter_gateway_state{{state=~"connecting|incompatible"}}) > 0',
        "10m",
        f"An adapter of {_HERE} is {{{{ $labels.state }}}}",
        "For 10 minutes it has found no gateway that it may use. Its engine computes every prompt.",
    ),
    Alert(
        "KvgateRetainedEventsGrow",
        Severity.TICKET,
        f"sum {_ENGINE} (delta(kvgate:adapter_retained_events[15m])) > 0\n"
        f"unless sum {_ENGINE} (increase(kvgate:adapter_operations_total[15m])) > 0",
        "15m",
        f"{_HERE} retains ever more events while nothing settles",
        "{{ $value | humanize }} more within 15 minutes in which no operation ended: each holds memory of its device.",
    ),
    Alert(
        "KvgateNothingLoaded",
        Severity.TICKET,
        "sum by (cluster, node, model) (increase(kvgate:adapter_prompt_tokens_total[1h])) > 100000\n"
        "unless sum by (cluster, node, model) (increase(kvgate:adapter_loaded_tokens_total[1h])) > 0\n"
        "and on (cluster, node) min by (cluster, node) (min_over_time(kvgate_ready[1h])) == 1\n"
        'unless on (cluster, node) max_over_time(kvgate_switch_mode{mode=~"off|no_load"}[1h]) > 0',
        "35m",
        "No token of {{ $labels.model }} was loaded on {{ $labels.node }} for an hour",
        "{{ $value | humanize }} prompt tokens were looked up meanwhile, and the gateway was ready all the time.",
    ),
    Alert(
        "KvgatePoolTooSmall",
        Severity.TICKET,
        'rate(kvgate_eviction_idle_seconds_bucket{le=~"300|300.0"}[15m]) > 0\n'
        f"and {_NODE} rate(kvgate_lookup_evicted_keys_total[15m])\n"
        f'  > {_NODE} 0.2 * rate(kvgate_requests_total{{op="LOOKUP",outcome="ok"}}[15m])',
        "30m",
        f"The pool of {_AT} is too small for its load",
        "It evicts chunks that were used within the last 5 minutes, and over 20 % of lookups end at a chunk that was"
        " evicted lately.",
    ),
    Alert(
        "KvgateQuarantine",
        Severity.TICKET,
        "kvgate_quarantined_bytes / kvgate_pool_bytes > 0.1",
        "10m",
        f"{{{{ $value | humanizePercentage }}}} of the pool of {_AT} is in quarantine",
        "It waits for engines that were cut off and are not proven dead, and holds no chunk meanwhile.",
    ),
)

BURNING = tuple(
    Alert(
        f"KvgateSlo{''.join(word.capitalize() for word in objective.name.split('_'))}",
        Severity.TICKET,
        burning(objective),
        "2m",
        f"{{{{ $labels.cluster }}}} breaks the promise that {objective.target * 100:g} % of {objective.title}",
        "{{ $value | humanizePercentage }} were not so. At this rate the error budget of thirty days is used up early.",
    )
    for objective in OBJECTIVES
)

ALERTS = (*CRITICAL, *TICKETS, *BURNING)
