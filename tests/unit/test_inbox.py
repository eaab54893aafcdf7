"""What is urgent goes first and rings; what is not waits for somebody who is awake."""

import os
from collections.abc import Iterator

import pytest

from adapter.inbox import Inbox


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


def has_rung(inbox: Inbox) -> bool:
    try:
        return os.eventfd_read(inbox.bell) > 0
    except BlockingIOError:
        return False


def made(inbox: Inbox, *, only_urgent: bool = False) -> list[str]:
    calls = []
    while (call := inbox.take(only_urgent=only_urgent)) is not None:
        calls.append(call())
    return calls


def test_the_urgent_come_first_and_else_the_order_stays(inbox: Inbox) -> None:
    for name, is_urgent in (("a", False), ("b", True), ("c", False), ("d", True)):
        inbox.post(lambda name=name: name, is_urgent=is_urgent)

    assert made(inbox, only_urgent=True) == ["b", "d"]
    assert (inbox.num_others, len(inbox), inbox.is_empty) == (2, 2, False)
    assert made(inbox) == ["a", "c"]
    assert inbox.is_empty


def test_a_sleeper_is_rung_for_what_is_urgent_alone_and_once(inbox: Inbox) -> None:
    inbox.post(lambda: "later", is_urgent=False)
    assert not has_rung(inbox)
    assert inbox.may_sleep()

    inbox.post(lambda: "now")
    assert has_rung(inbox)
    inbox.post(lambda: "too")
    assert not has_rung(inbox)
    assert not inbox.may_sleep()


def test_who_is_awake_is_not_rung(inbox: Inbox) -> None:
    inbox.wake()
    inbox.post(lambda: "now")
    assert not has_rung(inbox)
