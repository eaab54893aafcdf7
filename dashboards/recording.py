"""Recording rules: one series for each thing an adapter tells, whichever road it came by; and how nodes fare.

Owns: the choice of the source, so that nothing counts twice. Must not know: alerts, dashboards. Pure.

An engine's measurements may reach one Prometheus twice: from vLLM's own /metrics (``vllm:kvgate_adapter_…``) and from
the gateway, to which heartbeats carry them (``kvgate_engine_…``). Dashboards and alerts use ``kvgate:adapter_…`` alone,
which is the first where there is one for this cluster, node and model, and the second everywhere else; for the two that
page it is the other way round. Counters are recorded as they are, series by series: ``rate`` comes after.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.names import (
    VLLM_PREFIX,
    Families,
    Family,
    check,
    family,
    of_adapters,
    of_gateways,
    sample_names,
)
from gateway.metrics.table import ADAPTER_BY_NAME, ENGINE_PREFIX, engine_metrics

RECORDED_PREFIX = "kvgate:adapter_"

#: The job whose targets are gateways, one a node. A target that is down has no other name to be known by.
GATEWAYS = 'up{job="kvgate"}'


@dataclass(frozen=True)
class Recording:
    """One recording rule, and the labels of what it records beyond the target's."""

    record: str
    expr: str
    family: Family


def _from_vllm(series: str, *, as_engine: bool = True) -> str:
    """A series of vLLM with our label ``model``; ``engine``, which is a number there, becomes unique."""
    named = f'label_join({series}, "engine", "/", "instance", "engine")' if as_engine else series
    return f'label_replace({named}, "model", "$1", "model_name", "(.+)")'


def _vllm_else_gateway(of_vllm: str, of_gateway: str) -> str:
    shadow = _from_vllm(of_vllm, as_engine=False)
    return f"{_from_vllm(of_vllm)}\nor\n{of_gateway} unless on (cluster, node, model) {shadow}"


def _gateway_else_vllm(of_gateway: str, of_vllm: str, told: str) -> str:
    """For what pages: heartbeats have a thread of their own, vLLM tells with its steps, and an idle one's word is old.

    ``told``: the gateway's series by which it is known that it tells.
    """
    return f"{of_gateway}\nor\n{_from_vllm(of_vllm)} unless on (cluster, node, model) {told}"


def _adapter_series() -> Iterator[Recording]:
    for metric in engine_metrics():
        for name, labels in sample_names(metric, ""):
            of_vllm, of_gateway = VLLM_PREFIX + name, ENGINE_PREFIX + name
            if of_vllm not in of_adapters():
                expr = of_gateway
            elif name == ADAPTER_BY_NAME["doubtful_blocks"].name:
                expr = _gateway_else_vllm(of_gateway, of_vllm, of_gateway)
            else:
                expr = _vllm_else_gateway(of_vllm, of_gateway)
            yield Recording(RECORDED_PREFIX + name, expr, family(labels))


def _oldest_age() -> Recording:
    """How long the oldest operation of an engine has been pending at the moment of the scrape; 0: none is."""
    name = ADAPTER_BY_NAME["oldest_pending_timestamp_seconds"].name
    of_gateway, of_vllm = (
        f"(timestamp({series}) - {series}) * ({series} > bool 0)"
        for series in (ENGINE_PREFIX + name, VLLM_PREFIX + name)
    )
    expr = _gateway_else_vllm(of_gateway, of_vllm, ENGINE_PREFIX + name)
    return Recording(RECORDED_PREFIX + "oldest_pending_age_seconds", expr, Family({"engine": None, "model": None}))


#: 1 for a node whose gateway neither serves nor was taken out of service on purpose, 0 for every other one.
WITHOUT_SERVICE = Recording(
    "kvgate:node_without_service",
    "1 - max by (cluster, job, node, instance) (\n"
    f'  kvgate_ready or kvgate_state{{state=~"draining|drained|stopping"}} or 0 * {GATEWAYS}\n'
    ")",
    Family({}),
)

RECORDINGS: tuple[Recording, ...] = (*_adapter_series(), _oldest_age(), WITHOUT_SERVICE)


def families() -> Families:
    """Every name that dashboards and alerts may use: what gateways tell of themselves, and what is recorded.

    Raises:
        UnknownNameError: a recording rule uses a name that does not exist.
    """
    for recording in RECORDINGS:
        check(recording.expr, of_gateways() | of_adapters())
    return of_gateways() | {recording.record: recording.family for recording in RECORDINGS}
