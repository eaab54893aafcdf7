"""Every query that is written, asked of a real Prometheus that scrapes real gateways and engines under load.

Grafana is not run here: what it would ask is read from the dashboards' JSON, with its variables filled in.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dashboards.names import selectors
from tests.dashboards.fleet import Fleet
from tests.support.poll import until
from tests.support.prometheus import Prometheus, require_prometheus

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"
RULES = FOLDER / "rules" / "kvgate.yml"
BOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))

#: What Grafana puts in the place of its own variables, for a scrape twice a second, and of ours when all are chosen.
FILLED = {"$__rate_interval": "10s", "$__range": "1m"}

#: The largest value that can be true in this fleet, by unit.
LARGEST = {"percentunit": 1.0, "s": 1000.0, "short": 1e6, "ops": 1e6, "suffix: tok/s": 1e8, "bytes": 1e11, "Bps": 1e11}


@dataclass(frozen=True)
class Asked:
    """One query, where it stands, its unit (empty: any), and whether it may rightly have no series."""

    where: str
    query: str
    unit: str = ""
    may_be_empty: bool = False


def _filled(expr: str) -> str:
    for name, value in FILLED.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$(cluster|job|node|model|engine)\b", ".*", expr)


def _of_board(path: Path) -> Iterator[Asked]:
    board = json.loads(path.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            defaults = panel["fieldConfig"]["defaults"]
            where = f"{board['uid']}: {panel['title']} {target['refId']}"
            yield Asked(where, _filled(target["expr"]), defaults["unit"], "noValue" in defaults)
    for annotation in board["annotations"]["list"]:
        where = f"{board['uid']}: annotation {annotation['name']}"
        yield Asked(where, _filled(annotation["expr"]), may_be_empty=True)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert inner, variable
            yield Asked(f"{board['uid']}: ${inner[2]}", f"count by ({inner[2]}) ({_filled(inner[1])}) != 0")


def _of_rules() -> Iterator[Asked]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            name = rule.get("record") or rule["alert"]
            yield Asked(f"rules: {name}", rule["expr"], may_be_empty="alert" in rule)
            if "record" in rule:
                yield Asked(f"recorded: {name}", name)


ASKED = [*_of_rules(), *(asked for path in BOARDS for asked in _of_board(path))]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    require_prometheus()
    folder = tmp_path_factory.mktemp("prometheus")
    with Fleet() as fleet, Prometheus(folder, {"kvgate": fleet.targets}, _hurried(folder)) as running:
        yield running


def _hurried(folder: Path) -> Path:
    """The rules as they are, but for time: evaluated each second, and alerts fire at once."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump(rules), encoding="utf-8")
    return path


def _fault(prometheus: Prometheus, asked: Asked) -> str:
    """What is wrong with the answer to a query; empty: nothing."""
    answer = prometheus.query(asked.query)
    told = [answer[key] for key in ("error", "warnings", "infos") if answer.get(key)]
    if answer["status"] != "success" or told:
        return f"{asked.where}: {told}: {asked.query}"
    missing = _without_series(prometheus, asked.query)
    if missing:
        return f"{asked.where}: no series of {missing}"
    values = [float(series["value"][1]) for series in answer["data"]["result"]]
    if not values and not asked.may_be_empty:
        return f"{asked.where}: no series: {asked.query}"
    wrong = [value for value in values if not math.isfinite(value) or not _is_plausible(value, asked.unit)]
    return f"{asked.where}: {wrong}: {asked.query}" if wrong else ""


def _without_series(prometheus: Prometheus, query: str) -> list[str]:
    """What a query is made of and has no series at all: an alert's silence, or one side of an ``or``, would hide it.

    There is no vLLM here: what is taken from one is tested with promtool.
    """
    parts = [query[slice(*one.span)] for one in selectors(query) if not one.name.startswith("vllm:")]
    return [part for part in parts if not prometheus.query(f"count({part})")["data"]["result"]]


def _is_plausible(value: float, unit: str) -> bool:
    return not unit or 0 <= value <= LARGEST[unit]


def _faults(prometheus: Prometheus, asked: list[Asked]) -> list[str]:
    return [fault for one in asked if (fault := _fault(prometheus, one))]


def test_every_query_has_a_plausible_answer(prometheus: Prometheus) -> None:
    left = list(ASKED)

    def is_answered() -> bool:
        """Counters need a moment until they have a rate; a query that was answered once is not asked again."""
        left[:] = [one for one in left if _fault(prometheus, one)]
        return not left

    try:
        until(is_answered, 60)
    except AssertionError:
        faults = _faults(prometheus, left)
        assert not faults, "\n".join(faults)


def test_a_renamed_metric_is_found(prometheus: Prometheus) -> None:
    """Each metric of each query, renamed in turn, as if the code had a new name and the query the old one."""
    renamed = [
        Asked(f"{name} in {asked.where}", asked.query.replace(name, f"{name}_of_old"), asked.unit, asked.may_be_empty)
        for asked in ASKED
        for name in sorted({one.name for one in selectors(asked.query) if not one.name.startswith("vllm:")})
    ]

    assert len(renamed) > len(ASKED) / 2
    assert [one.where for one in renamed if not _fault(prometheus, one)] == []


def test_firing_alerts_say_what_they_mean(prometheus: Prometheus) -> None:
    """The text of a real alert: every label in it has a value."""
    until(lambda: {"KvgateDown", "KvgateDrainedLong"} <= set(_firing(prometheus)), 30, "alerts of the fleet")
    for annotations in _firing(prometheus).values():
        for text in annotations.values():
            assert "<no value>" not in text
            assert "<error" not in text
            assert "()" not in text


def _firing(prometheus: Prometheus) -> dict[str, dict[str, str]]:
    return {alert["labels"]["alertname"]: alert["annotations"] for alert in prometheus.firing_alerts()}
