import math

from adapter.requests import Requests
from gateway.wire.codes import Reason

BOOT, OTHER = b"A" * 16, b"B" * 16


def test_each_request_ends_once() -> None:
    requests = Requests()
    ends: list[object] = []
    number = requests.open(BOOT, 5.0, ends.append)
    finish = requests.take(number, BOOT)
    assert finish is not None
    finish(Reason.BUSY)
    assert requests.take(number, BOOT) is None
    assert requests.take_expired(10.0) == []
    assert requests.take_all() == []
    assert ends == [Reason.BUSY]


def test_numbers_are_never_used_again() -> None:
    requests = Requests()
    first = requests.open(BOOT, 5.0, print)
    requests.take_all()
    assert requests.open(BOOT, 5.0, print) > first


def test_only_the_boot_it_is_meant_for_may_answer() -> None:
    requests = Requests()
    number = requests.open(BOOT, 5.0, print)
    assert requests.take(number, OTHER) is None
    assert len(requests) == 1
    assert requests.take(number, BOOT) is print


def test_any_boot_may_answer_a_greeting() -> None:
    requests = Requests()
    assert requests.take(requests.open(b"", 5.0, print), OTHER) is print


def test_thousands_that_time_out_leave_nothing() -> None:
    requests = Requests()
    ends: list[Reason] = []
    for i in range(5000):
        requests.open(BOOT, i / 1000, ends.append)
    assert requests.next_deadline() == 0.0
    for finish in requests.take_expired(2.5):
        finish(Reason.NO_REPLY)
    assert len(ends) == 2501
    for finish in requests.take_expired(5.0):
        finish(Reason.NO_REPLY)
    assert len(ends) == 5000
    assert len(requests) == 0
    assert requests.next_deadline() == math.inf
