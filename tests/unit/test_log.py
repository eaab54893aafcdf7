"""How many lines a process writes, whatever happens to it: by a clock of the test's own."""

import ast
import io
import itertools
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.log import FIRST_GAP_SECONDS as ENGINE_GAP_SECONDS
from adapter.log import EngineLog
from gateway import log
from gateway.log import FIRST_GAP_SECONDS, LONGEST_GAP_SECONDS, Bound, Bounded, JsonLines, TextLines

HOUR = 3600.0
LINES_A_SECOND = 10


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def busiest_second(times: list[float]) -> int:
    """Lines in the fullest second that begins with one."""
    return max((sum(1 for other in times if time <= other < time + 1.0) for time in times), default=0)


def test_the_first_is_said_at_once_and_the_next_tells_how_many_were_not() -> None:
    bound = Bound(LINES_A_SECOND)

    assert bound.admit("failed", {}, 0.0) == {}
    assert [bound.admit("failed", {}, 0.001 * n) for n in range(1, 1000)] == [None] * 999
    assert bound.admit("failed", {}, FIRST_GAP_SECONDS) == {"suppressed": 999}


def test_another_engine_or_reason_or_event_is_another_line() -> None:
    bound = Bound(LINES_A_SECOND)
    lines = [
        ("failed", {"engine": "a", "reason": "full"}),
        ("failed", {"engine": "b", "reason": "full"}),
        ("failed", {"engine": "a", "reason": "busy"}),
        ("ended", {"engine": "a", "reason": "full"}),
    ]

    assert [bound.admit(event, facts, 0.0) for event, facts in lines] == [{}] * 4
    assert [bound.admit(event, facts, 1.0) for event, facts in lines] == [None] * 4


def test_numbers_and_ids_make_no_other_line() -> None:
    bound = Bound(LINES_A_SECOND)

    said = [bound.admit("failed", {"reason": f"slot {n} of {n * 7}", "operation": n}, n / 1000) for n in range(500)]

    assert said == [{}] + [None] * 499


def test_what_lasts_is_said_ever_more_rarely_and_at_once_again_when_it_comes_back() -> None:
    bound = Bound(LINES_A_SECOND)
    said = [
        float(t)
        for t in range(int(HOUR))
        if bound.admit("not_connected", {"reason": "no gateway"}, float(t)) is not None
    ]

    gaps = [after - before for before, after in itertools.pairwise(said)]
    assert gaps[:5] == [10.0, 20.0, 40.0, 80.0, 160.0]
    assert set(gaps[5:]) == {LONGEST_GAP_SECONDS}
    again = HOUR + LONGEST_GAP_SECONDS
    assert [bound.admit("not_connected", {"reason": "no gateway"}, again + t) for t in (0, 9)] == [
        {"suppressed": int(HOUR) - said[-1] - 1},
        None,
    ]
    assert bound.admit("not_connected", {"reason": "no gateway"}, again + 10) == {"suppressed": 1}


def test_an_engine_without_a_gateway_writes_fewer_than_sixty_lines_an_hour() -> None:
    """Its two halves say each second why they are not connected: no timer of an adapter says anything else at rest."""
    bounds = [Bound(5), Bound(5)]
    facts = {"engine": "e", "reason": "no gateway holds its lock"}

    lines = [1 for t in range(int(HOUR)) for bound in bounds if bound.admit("not_connected", facts, t) is not None]

    assert 0 < len(lines) < 60


def test_in_no_second_are_there_more_lines_than_allowed_and_those_that_were_too_many_are_counted() -> None:
    bound = Bound(LINES_A_SECOND)
    said = []
    told = 0
    for n in range(5000):  # ten seconds of nothing but new lines
        counts = bound.admit(f"event {n}", {}, n / 500)
        if counts is not None:
            said.append(n / 500)
            told += counts.get("suppressed_others", 0)

    assert busiest_second(said) == LINES_A_SECOND
    assert len(said) + told + bound.admit("last", {}, 60.0)["suppressed_others"] == 5000


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.floats(0, 15)), max_size=200))
def test_no_line_is_lost_from_the_count_and_both_bounds_hold(lines: list[tuple[str, float]]) -> None:
    bound, now = Bound(3), 0.0
    said: list[tuple[str, float]] = []
    told = 0
    for event, wait in lines:
        now += wait / 10
        counts = bound.admit(event, {}, now)
        if counts is not None:
            said.append((event, now))
            told += sum(counts.values())

    assert busiest_second([time for _, time in said]) <= 3
    last: dict[str, float] = {}
    for event, time in said:
        assert time - last.get(event, -FIRST_GAP_SECONDS) >= FIRST_GAP_SECONDS
        last[event] = time
    for event in "abcdefghijklmnop":  # what each has held back comes with its next line
        now += LONGEST_GAP_SECONDS
        told += sum(bound.admit(event, {}, now).values())
    assert len(said) + told == len(lines)


def test_what_is_remembered_is_bounded() -> None:
    bound = Bound(1)
    for n in range(10 * log.MAX_REMEMBERED):
        bound.admit(f"event {n}", {}, float(n))

    # The newest are remembered, the first is as good as new.
    now = float(10 * log.MAX_REMEMBERED)
    assert bound.admit(f"event {10 * log.MAX_REMEMBERED - 1}", {}, now) is None
    assert bound.admit("event 0", {}, now) == {}
    assert len(bound._told) == log.MAX_REMEMBERED


@pytest.fixture
def written():
    """A logger as a process of the gateway has it, its clock, and what it wrote."""
    clock, stream = Clock(), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(Bounded(Bound(LINES_A_SECOND), clock))
    root = logging.getLogger("test_log")
    root.propagate, root.handlers = False, [handler]
    root.setLevel(logging.INFO)
    yield root, clock, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers = []


def test_every_line_of_a_process_is_under_the_bound_whoever_wrote_it(written) -> None:
    logger, clock, lines = written
    for _ in range(20_000):  # twenty seconds of a storm from five loggers
        clock.now += 0.001
        logger.getChild(f"part{random.randrange(5)}").warning("part %d failed", random.randrange(1000))

    assert [line.get("suppressed") for line in lines()] == [None, pytest.approx(10_000, abs=2)]


def test_a_line_says_what_was_held_back_beside_its_own_facts(written) -> None:
    logger, clock, lines = written
    for _ in range(3):
        logger.info("died", extra={"facts": {"engine": "a", "party": "p"}})
    clock.now += FIRST_GAP_SECONDS
    logger.info("died", extra={"facts": {"engine": "a", "party": "q"}})

    first, second = lines()
    assert (first["engine"], first["party"], "suppressed" in first) == ("a", "p", False)
    assert (second["party"], second["suppressed"]) == ("q", 2)


def test_audit_lines_are_all_written() -> None:
    bounded = Bounded(Bound(1), Clock())
    record = logging.makeLogRecord({"name": log.AUDIT, "msg": "audit"})

    assert all(bounded.filter(record) for _ in range(100))
    assert not hasattr(record, "facts")


def test_a_line_for_people_has_the_same_facts() -> None:
    facts = {"engine": "a", "reason": 'the "pool" is gone', "seconds": 1.5}
    record = logging.makeLogRecord({"levelname": "WARNING", "msg": "check_failed", "created": 0.0, "facts": facts})

    assert TextLines().format(record) == (
        '1970-01-01T00:00:00.000+00:00 warning check_failed engine=a reason="the \\"pool\\" is gone" seconds=1.5'
    )


def test_ids_are_shown_by_their_digits() -> None:
    record = logging.makeLogRecord({"levelname": "INFO", "msg": "ready", "facts": {"boot_id": b"\x01\xff"}})

    assert json.loads(JsonLines().format(record))["boot_id"] == "01ff"
    assert TextLines().format(record).endswith(" ready boot_id=01ff")


def test_a_line_is_one_line_and_can_be_written_whatever_is_in_it() -> None:
    shown = log.readable("lookup_unanswered", {"request": "a\nb\ud800" + "x" * 5000})

    assert "\n" not in shown
    assert len(shown.encode("utf-8")) < 1100


def test_an_engine_says_the_same_at_most_once_a_minute(caplog) -> None:
    clock = Clock()
    engine_log = EngineLog("e-1", clock)
    said_at = []
    with caplog.at_level(logging.INFO, "kvgate.adapter"):
        for _ in range(int(HOUR)):
            clock.now += 1.0
            engine_log.warning("lookup_unanswered", request=f"cmpl-{clock.now}")
            said_at += [clock.now] * (len(caplog.records) - len(said_at))

    assert len(said_at) > 10, "what lasts is told again"
    assert min(after - before for before, after in itertools.pairwise(said_at)) == 60.0


def test_the_line_of_an_engine_has_all_its_facts_in_its_text(caplog) -> None:
    clock = Clock()
    engine_log = EngineLog("e-1", clock)
    with caplog.at_level(logging.INFO, "kvgate.adapter"):
        for _ in range(1000):
            engine_log.warning("operation_late", reason="expired", operation=7, request="cmpl-1")
        clock.now += ENGINE_GAP_SECONDS
        engine_log.warning("operation_late", reason="expired", operation=8, request="cmpl-2")

    first, second = caplog.records
    assert first.getMessage() == "operation_late engine=e-1 reason=expired operation=7 request=cmpl-1"
    assert second.getMessage().endswith("operation=8 request=cmpl-2 suppressed=999")
    assert (second.event, second.facts["engine"], second.facts["suppressed"]) == ("operation_late", "e-1", 999)


def test_a_storm_in_an_engine_stays_within_its_seconds(caplog) -> None:
    clock = Clock()
    engine_log = EngineLog("e-1", clock)
    times = []
    with caplog.at_level(logging.INFO, "kvgate.adapter"):
        for n in range(4000):
            clock.now += 0.001
            before = len(caplog.records)
            engine_log.error(f"event_{n % 997}", request=f"r{n}")
            times += [clock.now] * (len(caplog.records) - before)

    assert 0 < busiest_second(times) <= 5
    assert max(Counter(record.event for record in caplog.records).values()) == 1


def test_a_level_that_is_off_costs_no_line_of_the_bound(caplog) -> None:
    engine_log = EngineLog("e-1", Clock())
    with caplog.at_level(logging.WARNING, "kvgate.adapter"):
        for n in range(100):
            engine_log.info(f"event_{n}")
        engine_log.warning("told")

    assert [record.event for record in caplog.records] == ["told"]


ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"info", "warning", "error", "exception"}


def told(package: str) -> Iterator[str]:
    """Events in the source of a package: the first argument of each call of a log; ``*`` for what is filled in."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(str() as event), *_]) if (
                    level in LEVELS
                ):
                    yield event
                case ast.Call(func=ast.Attribute(attr=level), args=[ast.JoinedStr(values), *_]) if level in LEVELS:
                    yield "".join(str(v.value) if isinstance(v, ast.Constant) else "*" for v in values)
                case ast.Call(func=ast.Attribute(attr="audit"), args=[]):  # EngineLog's, whose event is its name
                    yield "audit"


@pytest.mark.parametrize(("package", "who"), [("gateway", "the gateway"), ("adapter", "an adapter")])
def test_the_operations_page_has_every_event(package: str, who: str) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.split(f"| event of {who} | says |\n")[1].split("\n\n")[0]
    listed = re.findall(r"`([a-z_*]+)`", "".join(row.split(" | ")[0] for row in table.splitlines()))
    events = {event for event in told(package) if re.fullmatch(r"[a-z_*]+", event)}

    assert len(events) > 10
    assert sorted(listed) == sorted(events)
