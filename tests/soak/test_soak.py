"""The soak runs beside the tests; here is that its judge is fair, and that it would find something."""

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.soak.flatness import HOUR, Rule, Verdict, judge
from tests.soak.rules import rule_for
from tests.support.daemon import REPOSITORY

MEMORY = rule_for("gateway resident")


def verdict(level: Callable[[float, random.Random], float], rule: Rule = MEMORY, seconds: float = HOUR) -> Verdict:
    """Of a series read two hundred times; ``level`` has the time and dice."""
    dice = random.Random(4)
    times = [seconds * i / 200 for i in range(200)]
    return judge("s", rule, [(time, level(time, dice)) for time in times], seconds, at_rest=0.0)


FLAT = {
    "noise": lambda time, dice: 70 + dice.gauss(0, 5),
    "a saw": lambda time, dice: 70 + time % 400 / 20,
    "bursts": lambda time, dice: 70 + 100 * (dice.random() < 0.1),
    "warming up": lambda time, dice: 70 + min(time, 800) / 10,
    "one step": lambda time, dice: 70 + 4 * (time > 2000),
    "what is allowed": lambda time, dice: 70 + 7 * time / HOUR + dice.gauss(0, 1),
    "falling": lambda time, dice: 100 - time / 60,
}
GROWING = {
    "slowly under noise": lambda time, dice: 70 + 20 * time / HOUR + dice.gauss(0, 2),
    "in a saw": lambda time, dice: 70 + time % 400 / 20 + 40 * time / HOUR,
    "between bursts": lambda time, dice: 70 + 15 * time / HOUR + 100 * (dice.random() < 0.1),
    "in steps": lambda time, dice: 70 + 4 * (time // 300),
}


@pytest.mark.parametrize("name", FLAT)
def test_what_does_not_grow_is_flat(name: str) -> None:
    assert verdict(FLAT[name]).problem == ""


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_is_found(name: str) -> None:
    assert verdict(GROWING[name]).problem == "grows"


def test_an_entry_a_request_is_found_in_a_minute_and_one_in_ten_minutes_in_an_hour() -> None:
    table = rule_for("gateway sessions")

    assert verdict(lambda time, dice: dice.randrange(5) + int(28 * time), table, seconds=60).problem == "grows"
    assert verdict(lambda time, dice: dice.randrange(5) + time // 600, table).problem == ""
    assert verdict(lambda time, dice: dice.randrange(5) + time // 60, table).problem == "grows"


def test_a_flat_series_is_seldom_taken_for_a_growing_one() -> None:
    strict = Rule()
    found = 0
    for seed in range(200):
        dice = random.Random(seed)
        readings = [(18.0 * i, dice.gauss(50, 10)) for i in range(200)]
        found += judge("s", strict, readings, HOUR).problem != ""

    assert found <= 6, "three in a hundred, with nothing allowed at all"


def test_a_history_may_fill_up_to_its_bound_and_no_further() -> None:
    history = Rule(bound=1000)

    assert verdict(lambda time, dice: min(time, 1000), history).problem == ""
    assert "bound" in verdict(lambda time, dice: min(time, 1001), history).problem


def test_what_must_be_empty_at_rest_is_looked_at_then() -> None:
    flat = [(float(i), 3.0) for i in range(200)]

    assert judge("s", Rule(is_empty_at_rest=True), flat, 200, at_rest=0).problem == ""
    assert judge("s", Rule(is_empty_at_rest=True), flat, 200, at_rest=3).problem == "3 at rest"


def test_a_series_that_was_hardly_read_is_no_flat_one() -> None:
    assert judge("s", MEMORY, [(0.0, 1.0), (90.0, 1.0)], 100).problem != ""


@pytest.mark.timeout(300)
def test_an_engine_that_keeps_its_events_and_sessions_is_found() -> None:
    command = [sys.executable, "-m", "tests.soak", "--seconds=24", "--hoarding"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)

    assert run.returncode == 1, run.stdout + run.stderr
    found = {line.partition("): ")[2] for line in run.stdout.splitlines() if line.startswith("FAILED")}
    leaks = ("staying-handle descriptors", "files run_dir", "staying-handle scheduler lookups")
    assert {f"{series}: grows" for series in leaks} <= found, run.stdout
    assert not [problem for problem in found if problem.startswith("staying-pool")], run.stdout
