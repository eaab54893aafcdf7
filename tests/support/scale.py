"""How much a test does: enough to be worth its time in every run, or all that is promised, in ``make nightly``."""

import os
from typing import TypeVar

T = TypeVar("T")

#: Set for the long version of the tests that have one.
VARIABLE = "KVGATE_LONG_TESTS"


def scaled(usual: T, long: T) -> T:
    """``usual``, or ``long`` in the nightly run."""
    return long if os.environ.get(VARIABLE) else usual
