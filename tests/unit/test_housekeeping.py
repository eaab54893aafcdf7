import logging

from gateway.health import HealthChecks
from gateway.housekeeping import Housekeeping
from gateway.wire.codes import Health


class Chore:
    """Notes when it ran; says or raises what the test wants."""

    def __init__(self) -> None:
        self.ran_at: list[float] = []
        self.reason = ""
        self.error: Exception | None = None

    def __call__(self, now: float) -> str:
        self.ran_at.append(now)
        if self.error is not None:
            raise self.error
        return self.reason


def keep_house(chore: Chore, every_seconds: float = 1.0) -> tuple[Housekeeping, HealthChecks]:
    checks = HealthChecks()
    housekeeping = Housekeeping(checks, 0.1)
    housekeeping.add("reaper", chore, every_seconds=every_seconds, max_age_seconds=5.0, is_critical=True, now=100.0)
    return housekeeping, checks


def test_a_chore_runs_at_its_own_pace() -> None:
    chore = Chore()
    housekeeping, _ = keep_house(chore)

    for tenth in range(25):
        housekeeping.run(100.0 + tenth / 10)

    assert chore.ran_at == [100.0, 101.0, 102.0]


def test_a_chore_that_raises_fails_its_check_until_it_works_again(caplog) -> None:
    chore = Chore()
    housekeeping, checks = keep_house(chore)

    chore.error = OSError("gone")
    with caplog.at_level(logging.INFO):
        housekeeping.run(100.0)
        housekeeping.run(101.0)
    assert checks.health(101.0) == (Health.UNHEALTHY, "OSError: gone")
    assert [record.getMessage() for record in caplog.records] == ["chore_failed"]

    chore.error = None
    with caplog.at_level(logging.INFO):
        housekeeping.run(102.0)
    assert checks.health(102.0) == (Health.HEALTHY, "")
    assert caplog.records[-1].getMessage() == "check_holds_again"


def test_one_failing_chore_does_not_keep_another_from_running() -> None:
    first, second = Chore(), Chore()
    housekeeping, _ = keep_house(first)
    housekeeping.add("pool", second, every_seconds=1.0, max_age_seconds=5.0, is_critical=True, now=100.0)
    first.error = RuntimeError("no")

    housekeeping.run(100.0)

    assert second.ran_at == [100.0]


def test_what_a_chore_says_is_its_checks_reason() -> None:
    chore = Chore()
    housekeeping, checks = keep_house(chore)

    chore.reason = "the file is gone"
    housekeeping.run(100.0)

    assert checks.health(100.0) == (Health.UNHEALTHY, "the file is gone")
