"""Which names a query may use: those of the metrics table, of our own recording rules, and Prometheus' two.

Owns: reading the selectors out of PromQL, and refusing a metric, label or label value that does not exist. Must not
know: any dashboard or rule. Pure.

A query is read, not parsed: strings, ranges, groupings and functions are stepped over, and what is left must be a
metric. Whether the query as a whole is PromQL is for Prometheus to say, in the tests.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.metrics.table import (
    ADAPTER,
    ADAPTER_PREFIX,
    ENGINE_PREFIX,
    GATEWAY,
    GATEWAY_PREFIX,
    Label,
    Metric,
    Type,
    engine_metrics,
)

#: Inside vLLM, which adds its own two labels to the adapter's.
VLLM_PREFIX = "vllm:" + ADAPTER_PREFIX

#: What every scraped series has from its target; ``cluster`` and ``node`` are the operator's to set.
TARGET_LABELS = ("cluster", "job", "node", "instance")


class UnknownNameError(ValueError):
    """A query uses a metric, a label or a label's value that nothing exposes."""


@dataclass(frozen=True)
class Family:
    """What a sample's name stands for: its own labels, each with its closed set or None; those of its target."""

    labels: Mapping[str, tuple[str, ...] | None]
    target: tuple[str, ...] = TARGET_LABELS


@dataclass(frozen=True)
class Selector:
    """One metric in a query, as written: where it stands, and its matchers as (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    span: tuple[int, int]


Families = Mapping[str, Family]

_TOKEN = re.compile(
    r"""
      "(?:[^"\\]|\\.)*" | \[[^]]*\] | (?<![\w:])\{[^}]*\}
    | \b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)
    | \b(?:and|or|unless|bool|offset|by|sum|min|max|avg|count|group|topk)\b
    | (?<![\w:.])[a-zA-Z_]\w*(?=\s*\()
    | (?P<name>(?<![\w:.])[a-zA-Z_:][\w:]*)(?P<matchers>\{[^}]*\})?
    """,
    re.VERBOSE,
)
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def sample_names(metric: Metric, prefix: str) -> Iterator[tuple[str, tuple[Label, ...]]]:
    """The names under which a metric's samples are stored, each with its labels."""
    full = prefix + metric.name
    match metric.type:
        case Type.GAUGE:
            yield full, metric.labels
        case Type.COUNTER:
            yield f"{full}_total", metric.labels
        case Type.HISTOGRAM:
            bounds = tuple(f"{bound:g}" for bound in metric.buckets) + tuple(str(bound) for bound in metric.buckets)
            yield f"{full}_bucket", (*metric.labels, Label("le", (*bounds, "+Inf")))
            yield f"{full}_sum", metric.labels
            yield f"{full}_count", metric.labels


def _families(prefix: str, metrics: Iterable[Metric]) -> dict[str, Family]:
    return {name: family(labels) for metric in metrics for name, labels in sample_names(metric, prefix)}


def family(labels: Iterable[Label]) -> Family:
    """A family with the table's labels."""
    return Family({label.name: label.values for label in labels})


def of_gateways() -> dict[str, Family]:
    """What a gateway tells of itself, and what Prometheus adds to every target and for every alert."""
    alerts = {"alertname": None, "alertstate": ("pending", "firing"), "severity": ("critical", "ticket")}
    return _families(GATEWAY_PREFIX, GATEWAY) | {"up": Family({}), "ALERTS": Family(alerts, ("cluster",))}


def of_adapters() -> dict[str, Family]:
    """What adapters tell, by each road that queries may choose from. vLLM's hook has no histograms."""
    vllm_labels = (Label("model_name"), Label("engine"))
    vllm = [Metric(m.name, m.type, m.help, vllm_labels + m.labels) for m in ADAPTER if m.type is not Type.HISTOGRAM]
    return _families(ENGINE_PREFIX, engine_metrics()) | _families(VLLM_PREFIX, vllm)


def selectors(query: str) -> Iterator[Selector]:
    """Every metric of a query, in order."""
    for token in _TOKEN.finditer(query):
        if token["name"]:
            matchers = tuple(_MATCHER.findall(token["matchers"] or ""))
            yield Selector(token["name"], matchers, token.span())


def check(query: str, families: Families) -> str:
    """The query, if all that it names exists.

    Raises:
        UnknownNameError: with the name and the query.
    """
    for selector in selectors(query):
        family = families.get(selector.name)
        if family is None:
            raise UnknownNameError(f"no metric {selector.name}: {query}")
        for label, _, value in selector.matchers:
            if label not in family.labels:
                if label not in family.target:
                    raise UnknownNameError(f"{selector.name} has no label {label}: {query}")
                continue
            closed = family.labels[label]
            wrong = set(value.split("|")) - set(closed or ())
            if closed is not None and wrong:
                raise UnknownNameError(f"{selector.name} has no {label} {', '.join(sorted(wrong))}: {query}")
    return query


def restricted(query: str, matchers: Callable[[str], Iterable[str]]) -> str:
    """The query with more matchers in every selector: what ``matchers`` gives for its metric's name."""
    parts, end = [], 0
    for selector in selectors(query):
        start, stop = selector.span
        own = [f'{label}{operator}"{value}"' for label, operator, value in selector.matchers]
        parts += [query[end:start], selector.name, "{", ",".join([*own, *matchers(selector.name)]), "}"]
        end = stop
    return "".join([*parts, query[end:]])
