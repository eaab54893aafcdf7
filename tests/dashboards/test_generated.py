"""What is generated: up to date, made of names that exist, and complete where an operator looks."""

import json
import re
from pathlib import Path

import pytest
import yaml

from adapter import AdapterConfig
from dashboards import __main__ as generator
from dashboards import alerts, grafana, objectives, recording, rules
from dashboards.boards import Board, Panel, Query, Row, Unit
from dashboards.names import UnknownNameError, check, restricted, selectors
from gateway.metrics import table

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
FILES = dict(generator.files())
BOARDS = {path.stem: json.loads(text) for path, text in FILES.items() if path.suffix == ".json"}
EACH_BOARD = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
#: What each entry of the runbook says, in this order.
SECTIONS = ["Meaning", "Harm", "Check", "Act", "Safe to ignore until"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path]


def test_a_difference_is_shown_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(generator, "FOLDER", tmp_path / "dashboards")

    assert generator.main(["--check"]) == 1
    assert "+groups:" in capsys.readouterr().out


class TestNames:
    @pytest.mark.parametrize(
        ("query", "named"),
        [
            ("kvgate_reddy", "no metric kvgate_reddy"),
            ("sum(rate(kvgate_commits[5m]))", "no metric kvgate_commits:"),  # a counter ends in _total
            ("kvgate_ready + on (node) lookups", "no metric lookups"),
            ("kvgate_engine_pending_stores", "no metric kvgate_engine_pending_stores"),  # recorded ones only
            ("vllm:kvgate_adapter_pending_stores", "no metric vllm:kvgate_adapter_pending_stores"),
            ('kvgate_state{stat="ready"}', "has no label stat"),
            ('kvgate_state{state=~"ready|dried"}', "has no state dried"),
            ('kvgate:adapter_lookup_wait_seconds_bucket{le="0.3"}', "has no le 0.3"),
            ('kvgate:slo_errors:ratio_1h{node="a"}', "has no label node"),
        ],
    )
    def test_what_does_not_exist_is_an_error(self, query: str, named: str) -> None:
        with pytest.raises(UnknownNameError, match=re.escape(named)):
            check(query, rules.families())

    @pytest.mark.parametrize(
        "query",
        [
            'sum by (state) (kvgate_state{state!="ready",node="a"}) > bool 0 unless on (node) up offset 5m',
            'histogram_quantile(0.9, sum by (le) (rate(kvgate_eviction_idle_seconds_bucket{le="+Inf"}[1m])))',
            "topk by (cluster) (1, count by (cluster, version) (kvgate_build_info)) >= 1e3",
        ],
    )
    def test_what_exists_is_left_as_it_is(self, query: str) -> None:
        assert check(query, rules.families()) == query

    def test_a_metric_that_goes_from_the_table_takes_its_panels_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dashboards.names.GATEWAY", tuple(m for m in table.GATEWAY if m.name != "commits"))

        with pytest.raises(UnknownNameError, match="no metric kvgate_commits_total"):
            list(generator.files())

    def test_every_selector_gets_its_matchers(self) -> None:
        query = 'sum by (le) (kvgate_ready) / on (node) up{job="kvgate"}'

        assert restricted(query, lambda name: [f'of="{name}"']) == (
            'sum by (le) (kvgate_ready{of="kvgate_ready"}) / on (node) up{job="kvgate",of="up"}'
        )


class TestDashboards:
    def test_addresses_are_fixed(self) -> None:
        assert set(BOARDS) == {"kvgate-overview", "kvgate-transfers", "kvgate-cache", "kvgate-latency"}
        assert all(board["uid"] == name for name, board in BOARDS.items())

    @EACH_BOARD
    def test_every_panel_is_explained(self, board: dict) -> None:
        for panel in _panels(board):
            assert panel["title"]
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"

    @EACH_BOARD
    def test_ids_are_unique_and_nothing_overlaps(self, board: dict) -> None:
        taken = [
            (x, y)
            for panel in board["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        ids = [panel["id"] for panel in board["panels"]]

        assert len(set(ids)) == len(ids)
        assert len(set(taken)) == len(taken)
        assert max(x for x, _ in taken) == 23

    @EACH_BOARD
    def test_variables_are_there_and_used(self, board: dict) -> None:
        names = [variable["name"] for variable in board["templating"]["list"]]

        assert names == ["datasource", "cluster", "job", "node", "model", "engine"]
        for query in _queries(board):
            for selector in selectors(query):
                if selector.name != "kvgate:slo_budget:ratio":
                    assert 'cluster=~"$cluster"' in query[slice(*selector.span)], query

    @EACH_BOARD
    def test_rates_follow_the_zoom_and_nothing_is_made_up(self, board: dict) -> None:
        for query in _queries(board):
            assert "vector(" not in query
            assert set(re.findall(r"\[(.+?)\]", query)) <= {"$__rate_interval", "$__range"}, query

    @EACH_BOARD
    def test_what_happened_is_marked(self, board: dict) -> None:
        assert [mark["name"] for mark in board["annotations"]["list"]] == [name for name, *_ in grafana.ANNOTATIONS]

    def test_the_first_row_is_the_fleet(self) -> None:
        first, *rest = BOARDS["kvgate-overview"]["panels"]
        row = [panel["title"] for panel in rest if panel["gridPos"]["y"] == 1]

        assert first["title"] == "Fleet"
        assert row == [
            "Nodes by state",
            "Adapters healthy, of all",
            "Prefill saved",
            "Saved, of prompt tokens",
            "Load wait, p99",
            "Oldest pending",
            "Did not end well",
            "Firing alerts",
        ]

    def test_a_panel_of_an_unknown_metric_is_refused(self) -> None:
        panel = Panel("t", "d.", Unit.COUNT, (Query("kvgate_nothing"),))

        with pytest.raises(UnknownNameError):
            grafana.render(Board("u", "t", "d.", (Row("r", (panel,)),)), rules.families())


class TestRules:
    def test_every_adapter_series_is_recorded_once(self) -> None:
        records = [rule.record for rule in recording.RECORDINGS]

        assert len(set(records)) == len(records)
        for metric in table.ADAPTER:
            assert any(record.startswith(f"kvgate:adapter_{metric.name}") for record in records), metric.name

    def test_deadlines_are_those_of_the_adapter(self) -> None:
        assert AdapterConfig().operation_deadline_seconds == objectives.OPERATION_DEADLINE_SECONDS
        assert AdapterConfig().lookup_timeout_seconds == 0.2  # the objective's bound

    def test_the_configurations_beside_them_fit(self) -> None:
        provisioning = ROOT / "dashboards" / "grafana" / "provisioning"
        source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))
        jobs = yaml.safe_load((ROOT / "dashboards" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]

        assert source["datasources"][0]["jsonData"]["timeInterval"].startswith(f"{rules.INTERVAL}")
        assert f'job="{jobs[0]["job_name"]}"' in recording.GATEWAYS

    @pytest.mark.parametrize("alert", alerts.ALERTS, ids=lambda alert: alert.name)
    def test_every_alert_has_an_entry_in_the_runbook(self, alert: alerts.Alert) -> None:
        page, anchor = alert.runbook.split("#")
        entries = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.DOTALL | re.MULTILINE))

        assert (ROOT / page).is_file()
        assert anchor == alert.name.lower()
        assert re.findall(r"^- \*\*(.+?)\.\*\*", entries[alert.name], re.MULTILINE) == SECTIONS

    def test_the_runbook_has_no_other_entries(self) -> None:
        assert set(re.findall(r"^### (Kvgate\w+)", RUNBOOK, re.MULTILINE)) == {alert.name for alert in alerts.ALERTS}


def _panels(board: dict) -> list[dict]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def _queries(board: dict) -> list[str]:
    return [target["expr"] for panel in _panels(board) for target in panel["targets"]] + [
        mark["expr"] for mark in board["annotations"]["list"]
    ]
