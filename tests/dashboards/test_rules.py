"""The rules, by promtool: each alert fires when it should, not before, and not for what looks alike."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards import alerts
from dashboards.names import selectors
from tests.dashboards.alert_cases import CASES, TARGET, Series
from tests.support.prometheus import require_prometheus

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "rules" / "kvgate.yml"
BY_NAME = {alert.name: alert for alert in alerts.ALERTS}
EACH_ALERT = pytest.mark.parametrize("name", BY_NAME)


def test_every_alert_has_cases() -> None:
    assert CASES.keys() == BY_NAME.keys()


def test_promtool_finds_no_fault() -> None:
    assert _promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


@EACH_ALERT
def test_an_alert_fires_when_it_should_and_not_before(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    fired = {"alertname": name, "alertstate": "firing", "severity": str(BY_NAME[name].severity), **case.labels}
    sample = {"labels": "ALERTS{" + ",".join(f'{key}="{value}"' for key, value in fired.items()) + "}", "value": 1}

    _expect(tmp_path, case.firing, {case.not_yet: [], case.at: [sample]}, _firing(name))


@EACH_ALERT
def test_an_alert_does_not_fire_for_what_looks_alike(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    for quiet in case.quiet:
        _expect(tmp_path, quiet, {case.at: []}, _firing(name))


@EACH_ALERT
def test_an_alert_says_only_what_it_knows(name: str) -> None:
    """A label that the alert does not carry would be shown as nothing."""
    alert = BY_NAME[name]
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))

    assert used <= CASES[name].labels.keys()


def test_a_drain_and_a_switch_of_everything_page_nobody(tmp_path: Path) -> None:
    engine = 'engine="e",model="m"'
    fleet = {
        "up{}": "1x800",
        "kvgate_scrape_success{}": "1x800",
        "kvgate_ready{}": "1x20 0x800",
        'kvgate_state{state="ready"}': "1x20 0x800",
        'kvgate_state{state="draining"}': "0x20 1x2 0x800",
        'kvgate_state{state="drained"}': "0x22 1x800",
        f'kvgate_engine_gateway_state{{{engine},state="healthy"}}': "2x20 0x800",
        f'kvgate_engine_gateway_state{{{engine},state="draining"}}': "0x20 2x800",
        f"kvgate_engine_oldest_pending_timestamp_seconds{{{engine}}}": "0x20 300x2 0x800",
        f"kvgate_engine_prompt_tokens_total{{{engine}}}": "0+1000x800",
        f"kvgate_engine_loaded_tokens_total{{{engine}}}": "0+500x20 10000x800",
        'kvgate_drains_total{outcome="completed"}': "0x22 1x800",
        'kvgate_switch_mode{scope="node",name="all",mode="off"}': "1x800",
    }

    _expect(tmp_path, fleet, {f"{minutes}m": [] for minutes in range(5, 180, 5)}, 'ALERTS{severity="critical"}')


#: The target of a vLLM. What one exposes is taken from it, everything else from the gateway, nothing from both.
VLLM = 'job="vllm",instance="n1:8000",cluster="c",node="n1"'


def _expect_sum(tmp_path: Path, series: Series, expected: dict[str, float], name: str = "pending_stores") -> None:
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    _expect(tmp_path, series, {"1m": samples}, f"sum by (model, engine) (kvgate:adapter_{name})")


def test_an_engine_on_both_roads_counts_once(tmp_path: Path) -> None:
    series = {
        f'vllm:kvgate_adapter_pending_stores{{model_name="m",engine="0",{VLLM}}}': "3x10",
        'kvgate_engine_pending_stores{engine="pod-a",model="m"}': "4x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="n1:8000/0"}': 3})


def test_an_engine_whose_own_metrics_are_not_scraped_is_taken_from_the_gateway(tmp_path: Path) -> None:
    series = {
        f'vllm:kvgate_adapter_pending_stores{{model_name="other",engine="0",{VLLM}}}': "3x10",
        'kvgate_engine_pending_stores{engine="pod-a",model="m"}': "4x10",
    }
    _expect_sum(tmp_path, series, {'{model="other",engine="n1:8000/0"}': 3, '{model="m",engine="pod-a"}': 4})


def test_the_same_model_on_another_node_is_another_engine(tmp_path: Path) -> None:
    elsewhere = VLLM.replace("n1", "n2")
    series = {
        f'vllm:kvgate_adapter_pending_stores{{model_name="m",engine="0",{elsewhere}}}': "3x10",
        'kvgate_engine_pending_stores{engine="pod-a",model="m"}': "4x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="n2:8000/0"}': 3, '{model="m",engine="pod-a"}': 4})


def test_every_rank_of_a_vllm_counts(tmp_path: Path) -> None:
    series = {
        f'vllm:kvgate_adapter_pending_stores{{model_name="m",engine="0",{VLLM}}}': "3x10",
        f'vllm:kvgate_adapter_pending_stores{{model_name="m",engine="1",{VLLM}}}': "2x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="n1:8000/0"}': 3, '{model="m",engine="n1:8000/1"}': 2})


def test_what_was_given_up_is_the_gateways_first(tmp_path: Path) -> None:
    series = {
        f'vllm:kvgate_adapter_doubtful_blocks{{model_name="m",engine="0",{VLLM}}}': "1x10",
        'kvgate_engine_doubtful_blocks{engine="pod-a",model="m"}': "0x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="pod-a"}': 0}, "doubtful_blocks")


def test_an_age_is_the_gateways_first(tmp_path: Path) -> None:
    """An idle vLLM's last word stays in its metrics."""
    series = {
        f'vllm:kvgate_adapter_oldest_pending_timestamp_seconds{{model_name="m",engine="0",{VLLM}}}': "5x10",
        'kvgate_engine_oldest_pending_timestamp_seconds{engine="pod-a",model="m"}': "0x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="pod-a"}': 0}, "oldest_pending_age_seconds")


def test_without_a_gateway_the_age_is_vllms(tmp_path: Path) -> None:
    series = {
        f'vllm:kvgate_adapter_oldest_pending_timestamp_seconds{{model_name="m",engine="0",{VLLM}}}': "20x10",
    }
    _expect_sum(tmp_path, series, {'{model="m",engine="n1:8000/0"}': 40}, "oldest_pending_age_seconds")


def _firing(name: str) -> str:
    return f'ALERTS{{alertname="{name}",alertstate="firing"}}'


def _rules_behind(query: str) -> dict:
    """The rules file without what the query does not need: promtool takes seconds for all of them over hours."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    alertnames = [value for one in selectors(query) for label, _, value in one.matchers if label == "alertname"]
    wanted = set(alertnames) or {rule["alert"] for rule in rules if "alert" in rule}
    needed = [rule for rule in rules if rule.get("alert") in wanted]
    queries = [query, *(rule["expr"] for rule in needed)]
    while queries:
        names = {one.name for one in selectors(queries.pop())}
        more = [rule for rule in rules if rule.get("record") in names and rule not in needed]
        needed += more
        queries += [rule["expr"] for rule in more]
    return {
        "groups": [
            {**group, "rules": kept}
            for group in groups
            if (kept := [rule for rule in group["rules"] if rule in needed])
        ]
    }


def _expect(folder: Path, series: Series, samples_at: dict[str, list[dict]], query: str) -> None:
    """promtool agrees that ``query`` has these samples at these times, with these series and the real rules."""
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump(_rules_behind(query)), encoding="utf-8")
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": _with_target(name), "values": v} for name, v in series.items()],
                "promql_expr_test": [
                    {"expr": query, "eval_time": at, "exp_samples": samples} for at, samples in samples_at.items()
                ],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test), encoding="utf-8")
    _promtool("test", "rules", path)


def _with_target(series: str) -> str:
    if "instance=" in series:
        return series.replace('x="",', "")
    name, labels = series.rstrip("}").split("{")
    return f"{name}{{{','.join(filter(None, (labels, TARGET)))}}}"


def _promtool(*arguments: str | Path) -> str:
    require_prometheus()
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
