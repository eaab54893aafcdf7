"""Waiting in tests: ask again until it holds, with a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(predicate: Callable[[], T], seconds: float = 10.0, what: str = "") -> T:
    """Ask ``predicate`` every few milliseconds until its answer is true, and return that answer.

    Raises:
        AssertionError: it did not hold within ``seconds``; the message names ``what`` and the last answer.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {what or predicate} (last answer {answer!r})")
        time.sleep(0.005)
