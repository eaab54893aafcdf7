"""Dashboards as Grafana's JSON, by way of Grafana's own builder library.

Owns: variables, annotations, looks, and giving every selector its variables. Must not know: which panels there are.
Writes nothing. Needs the ``dev`` extra; nothing that runs beside an engine or a gateway imports it.
"""

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.boards import Board, Kind, Panel, Query
from dashboards.names import Families, Family, check, restricted
from dashboards.recording import RECORDED_PREFIX, WITHOUT_SERVICE

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "kvgate"

_HEIGHTS = {Kind.LINES: 8, Kind.NOW: 5, Kind.TABLE: 8}
_ENGINES = RECORDED_PREFIX + "pending_stores"

#: (name, query, description) of each variable but the data source, in the order of the bar. Its values are those of a
#: label; "All" is every value and none, so that it also fits series that lack the label.
VARIABLES = (
    ("cluster", f"label_values({WITHOUT_SERVICE.record}, cluster)", "Label cluster of the scrape's targets."),
    (
        "job",
        f'label_values({{__name__=~"{WITHOUT_SERVICE.record}|{_ENGINES}",cluster=~"$cluster"}}, job)',
        "Jobs of gateways, and of vLLMs whose own metrics are scraped.",
    ),
    ("node", f'label_values({WITHOUT_SERVICE.record}{{cluster=~"$cluster"}}, node)', "One gateway a node."),
    (
        "model",
        f'label_values({_ENGINES}{{cluster=~"$cluster",node=~"$node"}}, model)',
        "Served model. Panels about whole gateways do not follow it.",
    ),
    (
        "engine",
        f'label_values({_ENGINES}{{cluster=~"$cluster",node=~"$node",model=~"$model"}}, engine)',
        "Engine's name. Panels about whole gateways do not follow it.",
    ),
)

#: (name, query, title, text, colour): what happened, on every time axis.
ANNOTATIONS = (
    ("drains", 'kvgate_state{state=~"draining|drained"} == 1', "{{node}} {{state}}", "drain", "orange"),
    ("switches", "kvgate_switch_mode > 0", "{{node}}: {{scope}} {{name}} {{mode}}", "switch", "yellow"),
    (
        "boots",
        "changes(kvgate_boot_timestamp_seconds[$__rate_interval]) > 0",
        "{{node}} started",
        "boot",
        "purple",
    ),
    (
        "versions",
        "kvgate_build_info unless on (cluster, node, version) kvgate_build_info offset 5m",
        "{{node}} runs {{version}}",
        "version",
        "blue",
    ),
)


class _Annotation(models.AnnotationQuery, Builder[models.AnnotationQuery]):
    """With what Grafana's Prometheus data source reads beside the common fields, and the library does not have."""

    def __init__(self, name: str, expr: str, title: str, tag: str, colour: str) -> None:
        super().__init__(name=name, datasource=DATASOURCE, enable=True, hide=False, icon_color=colour, expr=expr)
        self.title, self.tag = title, tag

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"titleFormat": self.title, "tagKeys": "", "textFormat": self.tag, "step": "15s"}

    def build(self) -> models.AnnotationQuery:
        return self


def _matchers(family: Family) -> Iterator[str]:
    """The variables that a metric follows: those of which it has the label."""
    for name, _, _ in VARIABLES:
        if name in family.target or name in family.labels:
            yield f'{name}=~"${name}"'


def query(expr: str, families: Families) -> str:
    """A query as the dashboard asks it.

    Raises:
        UnknownNameError: it uses a name that does not exist.
    """
    return restricted(check(expr, families), lambda name: _matchers(families[name]))


def render(board: Board, families: Families) -> str:
    """The dashboard's JSON, with a last line end.

    Raises:
        UnknownNameError: a query uses a name that does not exist.
    """
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .link(
            dashboard.DashboardLink("kvgate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("data source").type("prometheus"))
    )
    for name, values, description in VARIABLES:
        built = built.with_variable(_variable(name, values, description))
    for name, expr, title, tag, colour in ANNOTATIONS:
        built = built.annotation(_Annotation(name, query(expr, families), title, tag, colour))
    number = 0
    for row in board.rows:
        number += 1
        built = built.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            built = built.with_panel(_panel(panel, number, families))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(name: str, values: str, description: str) -> dashboard.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(name)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": values, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _panel(panel: Panel, number: int, families: Families) -> Any:
    match panel.kind:
        case Kind.LINES:
            built: Any = _lines()
        case Kind.NOW:
            built = (
                stat.Panel()
                .color_mode(looks.BigValueColorMode.VALUE)
                .graph_mode(looks.BigValueGraphMode.NONE)
                .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            )
        case Kind.TABLE:
            built = table.Panel().with_transformation(
                models.DataTransformerConfig(
                    "organize", options={"excludeByName": {"Time": True, "Value": True}, "renameByName": {}}
                )
            )
    built = (
        built.id(number)
        .title(panel.title)
        .description(panel.description)
        .unit(str(panel.unit))
        .datasource(DATASOURCE)
        .thresholds(_thresholds(panel.red_from))
        .height(_HEIGHTS[panel.kind])
        .span(panel.width)
    )
    if panel.nothing:
        built = built.no_value(panel.nothing)
    for index, one in enumerate(panel.queries):
        built = built.with_target(_target(one, chr(ord("A") + index), panel.kind, families))
    return built


def _thresholds(red_from: float | None) -> dashboard.ThresholdsConfig:
    """Set for every panel: Grafana's own would show whatever is 80 or more in red."""
    steps = [models.Threshold(value=None, color="text")]
    if red_from is not None:
        steps.append(models.Threshold(value=red_from, color="red"))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _lines() -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.LIST)
        .placement(looks.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    tooltip = common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING)
    return timeseries.Panel().legend(legend).tooltip(tooltip).fill_opacity(8).axis_soft_min(0)


def _target(one: Query, ref: str, kind: Kind, families: Families) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(ref).expr(query(one.expr, families)).datasource(DATASOURCE)
    if one.legend:
        target = target.legend_format(one.legend)
    if kind is Kind.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.instant() if kind is Kind.NOW else target.range()
