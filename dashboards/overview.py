"""The first dashboard: is the fleet well, what does it save, does it keep what was promised. Values only."""

from dashboards.boards import RATE, Board, Kind, Panel, Query, Row, Unit
from dashboards.objectives import OBJECTIVES, OPERATION_DEADLINE_SECONDS, errors_record
from dashboards.recording import GATEWAYS, WITHOUT_SERVICE

_FLEET = Row(
    "Fleet",
    (
        Panel(
            "Nodes by state",
            "Gateways by lifecycle state, and those that cannot be scraped. Ready is what serves.",
            Unit.COUNT,
            (
                Query("sum by (state) (kvgate_state) > 0", "{{state}}"),
                Query(f"sum({GATEWAYS} == bool 0)", "not scraped"),
                Query(f"sum({WITHOUT_SERVICE.record})", "without service"),
            ),
            Kind.NOW,
            width=5,
        ),
        Panel(
            "Adapters healthy, of all",
            "Adapters, two an engine, that have a gateway they may use; and all that exist.",
            Unit.COUNT,
            (
                Query('sum(kvgate:adapter_gateway_state{state="healthy"})', "healthy"),
                Query("sum(kvgate:adapter_gateway_state)", "all"),
            ),
            Kind.NOW,
            width=4,
        ),
        Panel(
            "Prefill saved",
            "Prompt tokens a second that engines loaded and did not compute.",
            Unit.TOKENS_PER_SECOND,
            (Query(f"sum(rate(kvgate:adapter_loaded_tokens_total{RATE}))", "saved"),),
            Kind.NOW,
            width=3,
        ),
        Panel(
            "Saved, of prompt tokens",
            "Tokens loaded, of the tokens of all prompts that were looked up.",
            Unit.SHARE,
            (
                Query(
                    f"sum(rate(kvgate:adapter_loaded_tokens_total{RATE}))"
                    f" / (sum(rate(kvgate:adapter_prompt_tokens_total{RATE})) > 0)",
                    "saved",
                ),
            ),
            Kind.NOW,
            width=2,
            nothing="no prompts",
        ),
        Panel(
            "Load wait, p99",
            "What 99 of 100 requests waited at most for their load.",
            Unit.SECONDS,
            (
                Query(
                    f"histogram_quantile(0.99, sum by (le) (rate(kvgate:adapter_load_wait_seconds_bucket{RATE}))) >= 0",
                    "p99",
                ),
            ),
            Kind.NOW,
            width=2,
            nothing="no loads",
        ),
        Panel(
            "Oldest pending",
            "Age of the oldest operation that is not settled; 0: none. Operations settle by their deadline, 30 s.",
            Unit.SECONDS,
            (Query("max(kvgate:adapter_oldest_pending_age_seconds)", "oldest"),),
            Kind.NOW,
            width=2,
            red_from=OPERATION_DEADLINE_SECONDS + 10,
        ),
        Panel(
            "Did not end well",
            "Operations of the range shown, by outcome. Refused is normal while drained, switched off or overloaded.",
            Unit.COUNT,
            (
                Query(
                    'sum by (outcome) (increase(kvgate:adapter_operations_total{outcome!~"stored|loaded"}[$__range]))',
                    "{{outcome}}",
                ),
            ),
            Kind.NOW,
            width=3,
        ),
        Panel(
            "Firing alerts",
            "Alerts of kvgate that fire. What each means and asks for is in the runbook.",
            Unit.COUNT,
            (
                Query(
                    'count by (severity) (ALERTS{alertname=~"Kvgate.*",alertstate="firing"})',
                    "{{severity}}",
                ),
            ),
            Kind.NOW,
            width=3,
            nothing="none",
            red_from=1,
        ),
    ),
)

_DIFFERENT = Row(
    "What differs",
    (
        Panel(
            "Nodes that differ",
            "Every node not ready, not healthy, not scraped, switched, or of another version than most. Empty is good.",
            Unit.COUNT,
            (
                Query(
                    "max by (cluster, node, instance, differs) (\n"
                    '  label_replace(kvgate_state{state!="ready"} == 1, "differs", "$1", "state", "(.+)")\n'
                    '  or label_replace(kvgate_health{health!="healthy"} == 1, "differs", "$1", "health", "(.+)")\n'
                    '  or label_replace(kvgate_switch_mode > 0, "differs", "switched to $1", "mode", "(.+)")\n'
                    f'  or label_replace({GATEWAYS} == 0, "differs", "not scraped", "", "")\n'
                    "  or label_replace(\n"
                    "    kvgate_build_info unless on (cluster, version)"
                    " topk by (cluster) (1, count by (cluster, version) (kvgate_build_info)),\n"
                    '    "differs", "version $1", "version", "(.+)"\n'
                    "  )\n"
                    ")"
                ),
            ),
            Kind.TABLE,
            width=8,
            nothing="all nodes are alike, and ready",
        ),
        Panel(
            "Operations that did not end well",
            "By kind and outcome; whatever is not stored or loaded is computed again one day.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (kind, outcome) (rate(kvgate:adapter_operations_total{{outcome!~"stored|loaded"}}{RATE}))',
                    "{{kind}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Adapters without a gateway",
            "Adapters by how they see their gateway, but for healthy ones.",
            Unit.COUNT,
            (Query('sum by (state) (kvgate:adapter_gateway_state{state!="healthy"})', "{{state}}"),),
        ),
    ),
)

_WORTH = Row(
    "What it is worth",
    (
        Panel(
            "Tokens looked up and loaded",
            "The distance between the two is what engines computed.",
            Unit.TOKENS_PER_SECOND,
            (
                Query(f"sum by (model) (rate(kvgate:adapter_prompt_tokens_total{RATE}))", "{{model}} prompts"),
                Query(f"sum by (model) (rate(kvgate:adapter_loaded_tokens_total{RATE}))", "{{model}} loaded"),
            ),
        ),
        Panel(
            "Tokens wasted",
            "Promised by a lookup and not loaded, or computed and not stored, by reason.",
            Unit.TOKENS_PER_SECOND,
            (Query(f"sum by (reason) (rate(kvgate:adapter_wasted_tokens_total{RATE}))", "{{reason}}"),),
        ),
        Panel(
            "Pool in use",
            "Share of each pool that is not free; the ten fullest. A full pool is normal: it evicts.",
            Unit.SHARE,
            (
                Query(
                    'topk(10, 1 - kvgate_chunk_bytes{state="free"} / ignoring (state) kvgate_pool_bytes)',
                    "{{node}}",
                ),
            ),
        ),
    ),
)

_OBJECTIVES = Row(
    "Objectives",
    (
        *(
            Panel(
                f"{objective.target * 100:g} % of {objective.title}",
                "Share that was not so, within an hour and within six; the budget is what may not be so.",
                Unit.SHARE,
                (
                    Query(f'{errors_record("1h")}{{slo="{objective.name}"}}', "{{cluster}} 1 h"),
                    Query(f'{errors_record("6h")}{{slo="{objective.name}"}}', "{{cluster}} 6 h"),
                    Query(f'kvgate:slo_budget:ratio{{slo="{objective.name}"}}', "budget"),
                ),
                width=6,
            )
            for objective in OBJECTIVES
        ),
        Panel(
            "Burn rate",
            "Errors of an hour over the budget. At 1 thirty days' budget lasts thirty days; past 14.4 it alerts.",
            Unit.COUNT,
            (
                Query(
                    f"{errors_record('1h')} / on (slo) group_left () kvgate:slo_budget:ratio",
                    "{{cluster}} {{slo}}",
                ),
            ),
            width=6,
        ),
    ),
)

BOARD = Board(
    "kvgate-overview",
    "kvgate / Overview",
    "Whether the fleet is well, what it saves, and whether it keeps its promises.",
    (_FLEET, _DIFFERENT, _WORTH, _OBJECTIVES),
)
