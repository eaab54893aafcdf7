"""What the engine is told of its requests."""

from adapter.reports import MAX_FAILED, Reports
from gateway.wire.codes import OperationKind

STORE = OperationKind.STORE


def test_a_held_request_is_told_once_when_its_last_store_is_settled() -> None:
    reports = Reports()
    for _ in range(2):
        reports.opened(STORE, "r")
    assert reports.take_finished(["r", "idle"])[0] == {"idle"}
    reports.settled(STORE, "r")
    assert reports.take_finished(["r", "idle"])[0] == set()
    reports.settled(STORE, "r")
    assert reports.take_finished([])[0] == {"r"}
    assert reports.take_finished([])[0] == set()


def test_a_held_request_that_stores_again_before_it_is_told_waits_for_that_store() -> None:
    reports = Reports()
    reports.opened(STORE, "r")
    assert reports.take_finished(["r"])[0] == set()
    reports.settled(STORE, "r")
    reports.opened(STORE, "r")
    assert reports.take_finished(["r"])[0] == set()
    reports.settled(STORE, "r")
    assert reports.take_finished(["r"])[0] == {"r"}
    assert reports.take_finished(["r"])[0] == set(), "told again while it is still passed"


def test_a_request_that_was_never_passed_is_not_told() -> None:
    reports = Reports()
    reports.opened(STORE, "r")
    reports.settled(STORE, "r")
    assert reports.take_finished([])[0] == set()
    assert reports.take_finished(["r"])[0] == {"r"}


def test_of_failed_loads_that_nobody_asks_for_only_the_last_are_kept() -> None:
    reports = Reports()
    for number in range(MAX_FAILED + 10):
        reports.load_failed(f"r{number}", [number % 8])
    reports.load_failed("r20", [0])  # once more: it is the last again

    assert reports.sizes()["failed_requests"] == MAX_FAILED
    assert reports.take_failed_requests() == {f"r{number}" for number in range(10, MAX_FAILED + 10)}
    assert reports.take_failed_requests() == set()
