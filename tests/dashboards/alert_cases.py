"""For each alert: what makes it fire, when it does not yet, and what looks alike and must not make it fire.

Series are written as promtool reads them, one value each 15 s; those without an instance get node n1's target labels.
"""

from dataclasses import dataclass

TARGET = 'cluster="c",job="kvgate",node="n1",instance="n1:9480"'
NODE = {"cluster": "c", "job": "kvgate", "node": "n1", "instance": "n1:9480"}
ENGINE = {"cluster": "c", "node": "n1", "engine": "e", "model": "m"}
CLUSTER = {"cluster": "c"}
E = 'engine="e",model="m"'

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """One alert's. ``labels``: what it carries when it fires, no more; ``quiet``: sets of series, each on its own."""

    firing: Series
    not_yet: str
    at: str
    labels: dict[str, str]
    quiet: tuple[Series, ...]


def _nodes(*series: Series) -> Series:
    """Series of several nodes, n1, n2 and so on."""
    return {
        f'{name[:-1]},cluster="c",job="kvgate",node="n{i}",instance="n{i}:9480"}}': values
        for i, one in enumerate(series, start=1)
        for name, values in one.items()
    }


READY = {'up{x=""}': "1x100", 'kvgate_ready{x=""}': "1x100"}
DOWN = {'up{x=""}': "0x100"}
DRAINED = {'up{x=""}': "1x100", 'kvgate_ready{x=""}': "0x100", 'kvgate_state{state="drained"}': "1x100"}

GATEWAY_STATE = f"kvgate_engine_gateway_state{{{E},state="
LOADS = f'kvgate_engine_lookup_wait_seconds_bucket{{{E},le="0.2"}}'
SETTLED = f'kvgate_engine_operation_duration_seconds_bucket{{{E},kind="store",le="33.0"}}'

CASES: dict[str, Case] = {
    "KvgateOperationUnsettled": Case(
        # Submitted at second 10; the deadline is 30 s.
        firing={f"kvgate_engine_oldest_pending_timestamp_seconds{{{E}}}": "10x20"},
        not_yet="75s",
        at="3m",
        labels=ENGINE,
        quiet=(
            {f"kvgate_engine_oldest_pending_timestamp_seconds{{{E}}}": "0x20"},  # none is pending
            {f"kvgate_engine_oldest_pending_timestamp_seconds{{{E}}}": "1 1 1+15x20"},  # always one, never old
        ),
    ),
    "KvgateBlocksInDoubt": Case(
        firing={f"kvgate_engine_doubtful_blocks{{{E}}}": "0x4 32x20"},
        not_yet="105s",
        at="3m",
        labels=ENGINE,
        quiet=(
            {f"kvgate_engine_doubtful_blocks{{{E}}}": "32 0 16 0 48 0 16x3 0x20"},  # a drain: copies end soon
            {f'kvgate_engine_drains_total{{{E},trigger="switch"}}': "0 9x20"},
        ),
    ),
    "KvgateLoadVerificationsFail": Case(
        firing={f"kvgate_engine_failed_verifications_total{{{E}}}": "0+1x80"},
        not_yet="8m",
        at="12m",
        labels=ENGINE,
        quiet=({f"kvgate_engine_failed_verifications_total{{{E}}}": "0x4 9x80"},),  # once, as after a restart
    ),
    "KvgateNodesWithoutService": Case(
        firing=_nodes(READY, READY, READY, DOWN),
        not_yet="4m",
        at="6m",
        labels=CLUSTER,
        quiet=(_nodes(READY, READY, READY, READY, DOWN), _nodes(READY, DRAINED, DRAINED, DRAINED)),
    ),
    "KvgateDown": Case(
        firing={"up{}": "0x40"},
        not_yet="4m",
        at="6m",
        labels=NODE,
        quiet=({"up{}": "0x12 1x40"}, {"up{}": "1x40", 'kvgate_state{state="drained"}': "1x40"}),
    ),
    "KvgateScrapeFailing": Case(
        firing={"kvgate_scrape_success{}": "0x40"},
        not_yet="4m",
        at="6m",
        labels=NODE,
        quiet=({"kvgate_scrape_success{}": "0x12 1x40"},),
    ),
    "KvgateNotReady": Case(
        firing={"up{}": "1x40", "kvgate_ready{}": "0x40", 'kvgate_state{state="starting"}': "1x40"},
        not_yet="4m",
        at="6m",
        labels=NODE,
        quiet=(
            {"up{}": "1x40", "kvgate_ready{}": "0x40", 'kvgate_state{state="drained"}': "1x40"},
            {"up{}": "1x40", "kvgate_ready{}": "0x8 1x40", 'kvgate_state{state="starting"}': "1x8 0x40"},
        ),
    ),
    "KvgateRestartLoop": Case(
        firing={"kvgate_boot_timestamp_seconds{}": "1x8 2x3 3x3 4x3 5x60"},
        not_yet="4m",
        at="6m",
        labels=NODE,
        quiet=({"kvgate_boot_timestamp_seconds{}": "1x8 2x3 3x3 4x60"},),
    ),
    "KvgateDrainStuck": Case(
        firing={'kvgate_state{state="draining"}': "1x80"},
        not_yet="14m",
        at="16m",
        labels={**NODE, "state": "draining"},
        quiet=({'kvgate_state{state="draining"}': "1x55 0x80", 'kvgate_state{state="drained"}': "0x55 1x80"},),
    ),
    "KvgateDrainCutWork": Case(
        firing={'kvgate_drains_total{outcome="deadline_exceeded"}': "0x10 1x60"},
        not_yet="2m",
        at="4m",
        labels={**NODE, "outcome": "deadline_exceeded"},
        quiet=(
            {
                'kvgate_drains_total{outcome="deadline_exceeded"}': "3x60",
                'kvgate_drains_total{outcome="completed"}': "0x10 1x60",
                'kvgate_drains_total{outcome="forced"}': "0x10 1x60",
            },
        ),
    ),
    "KvgateDrainedLong": Case(
        firing={'kvgate_state{state="drained"}': "1x260"},
        not_yet="59m",
        at="61m",
        labels={**NODE, "state": "drained"},
        quiet=({'kvgate_state{state="drained"}': "1x200 0x60", 'kvgate_state{state="ready"}': "0x200 1x60"},),
    ),
    "KvgateSwitchedOffLong": Case(
        firing={'kvgate_switch_mode{scope="model",name="m",mode="off"}': "1x260"},
        not_yet="59m",
        at="61m",
        labels={**NODE, "scope": "model", "name": "m", "mode": "off"},
        quiet=({'kvgate_switch_mode{scope="model",name="m",mode="off"}': "1x200 stale"},),
    ),
    "KvgateAdapterOut": Case(
        firing={GATEWAY_STATE + '"incompatible"}': "1x60"},
        not_yet="9m",
        at="11m",
        labels={**ENGINE, "state": "incompatible"},
        quiet=(
            {GATEWAY_STATE + '"connecting"}': "1x30 0x30", GATEWAY_STATE + '"healthy"}': "0x30 1x30"},
            {GATEWAY_STATE + '"draining"}': "2x60", GATEWAY_STATE + '"connecting"}': "0x60"},
        ),
    ),
    "KvgateRetainedEventsGrow": Case(
        firing={
            f"kvgate_engine_retained_events{{{E}}}": "0+1x100",
            f'kvgate_engine_operations_total{{{E},kind="store",outcome="stored"}}': "7x100",
        },
        not_yet="14m",
        at="17m",
        labels=ENGINE,
        quiet=(
            {
                f"kvgate_engine_retained_events{{{E}}}": "0+1x100",  # a busy engine, growing busier
                f'kvgate_engine_operations_total{{{E},kind="store",outcome="stored"}}': "7+1x100",
            },
            {
                f"kvgate_engine_retained_events{{{E}}}": "5x100",
                f'kvgate_engine_operations_total{{{E},kind="store",outcome="stored"}}': "7x100",
            },
        ),
    ),
    "KvgateNothingLoaded": Case(
        firing={
            f"kvgate_engine_prompt_tokens_total{{{E}}}": "0+1000x320",
            f"kvgate_engine_loaded_tokens_total{{{E}}}": "0x320",
            "kvgate_ready{}": "1x320",
        },
        not_yet="50m",
        at="75m",
        labels={"cluster": "c", "node": "n1", "model": "m"},
        quiet=(
            {
                f"kvgate_engine_prompt_tokens_total{{{E}}}": "0+1000x320",
                f"kvgate_engine_loaded_tokens_total{{{E}}}": "0x280 16x40",
                "kvgate_ready{}": "1x320",
            },
            {
                f"kvgate_engine_prompt_tokens_total{{{E}}}": "0+1000x320",
                f"kvgate_engine_loaded_tokens_total{{{E}}}": "0x320",
                "kvgate_ready{}": "1x100 0x80 1x140",  # drained for a while
            },
            {
                f"kvgate_engine_prompt_tokens_total{{{E}}}": "0+1000x320",
                f"kvgate_engine_loaded_tokens_total{{{E}}}": "0x320",
                "kvgate_ready{}": "1x320",
                'kvgate_switch_mode{scope="node",name="all",mode="no_load"}': "1x320",
            },
            {
                f"kvgate_engine_prompt_tokens_total{{{E}}}": "0+100x320",  # hardly a prompt
                f"kvgate_engine_loaded_tokens_total{{{E}}}": "0x320",
                "kvgate_ready{}": "1x320",
            },
        ),
    ),
    "KvgatePoolTooSmall": Case(
        firing={
            'kvgate_eviction_idle_seconds_bucket{le="300.0"}': "0+5x160",
            "kvgate_lookup_evicted_keys_total{}": "0+3x160",
            'kvgate_requests_total{op="LOOKUP",outcome="ok"}': "0+10x160",
        },
        not_yet="28m",
        at="32m",
        labels={**NODE, "le": "300.0"},
        quiet=(
            {
                'kvgate_eviction_idle_seconds_bucket{le="300.0"}': "0+5x160",
                "kvgate_lookup_evicted_keys_total{}": "0+1x160",
                'kvgate_requests_total{op="LOOKUP",outcome="ok"}': "0+10x160",
            },
            {
                'kvgate_eviction_idle_seconds_bucket{le="300.0"}': "5x160",  # evicts only what is old
                "kvgate_lookup_evicted_keys_total{}": "0+3x160",
                'kvgate_requests_total{op="LOOKUP",outcome="ok"}': "0+10x160",
            },
        ),
    ),
    "KvgateQuarantine": Case(
        firing={"kvgate_quarantined_bytes{}": "11x60", "kvgate_pool_bytes{}": "100x60"},
        not_yet="9m",
        at="11m",
        labels=NODE,
        quiet=({"kvgate_quarantined_bytes{}": "10x60", "kvgate_pool_bytes{}": "100x60"},),
    ),
    # An hour in which all is well, then half is not.
    "KvgateSloAdaptersHealthy": Case(
        firing={GATEWAY_STATE + '"healthy"}': "2x240 1x80", GATEWAY_STATE + '"dead"}': "0x240 1x80"},
        not_yet="63m",
        at="75m",
        labels={**CLUSTER, "slo": "adapters_healthy"},
        quiet=(
            {GATEWAY_STATE + '"healthy"}': "2x240 1x12 2x80", GATEWAY_STATE + '"dead"}': "0x240 1x12 0x80"},
            {GATEWAY_STATE + '"healthy"}': "2x240 0x80", GATEWAY_STATE + '"draining"}': "0x240 2x80"},
        ),
    ),
    "KvgateSloLookupsInTime": Case(
        firing={
            LOADS: "0+10x240 2405+5x80",
            f"kvgate_engine_lookup_wait_seconds_count{{{E}}}": "0+10x320",
        },
        not_yet="61m",
        at="75m",
        labels={**CLUSTER, "slo": "lookups_in_time"},
        quiet=(
            {LOADS: "0+9995x320", f"kvgate_engine_lookup_wait_seconds_count{{{E}}}": "0+10000x320"},
            {LOADS: "5x320", f"kvgate_engine_lookup_wait_seconds_count{{{E}}}": "9x320"},  # nobody looks anything up
        ),
    ),
    "KvgateSloOperationsSettled": Case(
        firing={
            SETTLED: "0+10x240 2405+5x80",
            f'kvgate_engine_operation_duration_seconds_count{{{E},kind="store"}}': "0+10x320",
        },
        not_yet="61m",
        at="75m",
        labels={**CLUSTER, "slo": "operations_settled"},
        quiet=(
            {
                SETTLED: "0+10x320",
                f'kvgate_engine_operation_duration_seconds_count{{{E},kind="store"}}': "0+10x320",
            },
        ),
    ),
}
