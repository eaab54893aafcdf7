"""The metrics table as a page: ``python -m gateway.metrics.document`` prints ``docs/metrics.md``.

Owns: the wording and the layout of that page. Must not know: where values come from, or any name that is not in
the table. Runs at the command line only; ``make check`` compares its output with the page in the repository.
"""

import sys
from collections.abc import Sequence

from gateway.metrics.table import (
    ADAPTER,
    ADAPTER_PREFIX,
    ENGINE_ONLY,
    ENGINE_PREFIX,
    GATEWAY,
    GATEWAY_PREFIX,
    Label,
    Metric,
    Type,
)

_HEAD = f"""\
# Metrics

Generated from `gateway/metrics/table.py` by `make fix`; `make check` fails when the two differ.

Units are seconds and bytes. Label sets are closed: nothing of a request, a key, a tenant or an error text stands
in a label, and every combination of closed values that can be exists, at 0, from the start. Gauges are read from
the table that owns the fact at the moment of the scrape; counters grow where the thing happens. Nothing is a rate,
a mean or a ratio over time: queries make those.

An adapter's measurements reach Prometheus on two roads, under two prefixes, so that one Prometheus may take both:

- `{ADAPTER_PREFIX}…` in the adapter's own registry (`WorkerAdapter.registry`, `SchedulerAdapter.registry`);
- `{ENGINE_PREFIX}…{{engine,model}}` on the gateway's `/metrics`, carried there by heartbeats, one set of series an
  engine name over all its parties. Counters never fall: the gateway adds each party's increments.
"""


def full_name(metric: Metric, prefix: str) -> str:
    """The name a query uses: a counter's ends in ``_total``."""
    return f"{prefix}{metric.name}{'_total' if metric.type is Type.COUNTER else ''}"


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            _HEAD,
            *_section(
                f"The adapter: `{ADAPTER_PREFIX}…`",
                f"The same families stand on the gateway's `/metrics` as `{ENGINE_PREFIX}…`, with the labels"
                " `engine` and `model` before their own.",
                ADAPTER_PREFIX,
                ADAPTER,
            ),
            *_section(
                f"Only on the gateway: `{ENGINE_PREFIX}…`",
                "Labels: `engine` and `model`.",
                ENGINE_PREFIX,
                ENGINE_ONLY,
            ),
            *_section(
                f"The gateway: `{GATEWAY_PREFIX}…`",
                "When the core does not answer a scrape, only the admin process's own figures are there, with"
                f" `{GATEWAY_PREFIX}scrape_success` 0: never values of an earlier scrape.",
                GATEWAY_PREFIX,
                GATEWAY,
            ),
        ]
    )


def _section(title: str, text: str, prefix: str, metrics: Sequence[Metric]) -> list[str]:
    rows = [_row(metric, prefix) for metric in metrics]
    return [f"## {title}", "", text, "", "| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""]


def _row(metric: Metric, prefix: str) -> str:
    cells = (f"`{full_name(metric, prefix)}`", metric.type, _labels(metric.labels), metric.help + _buckets(metric))
    return f"| {' | '.join(cells)} |"


def _labels(labels: Sequence[Label]) -> str:
    return "; ".join(
        f"`{label.name}`" if label.values is None else f"`{label.name}`: {', '.join(label.values)}" for label in labels
    )


def _buckets(metric: Metric) -> str:
    if not metric.buckets:
        return ""
    return f" Buckets up to: {', '.join(f'{bound:g}' for bound in metric.buckets)}."


if __name__ == "__main__":
    sys.stdout.write(render())
