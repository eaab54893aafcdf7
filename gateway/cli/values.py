"""Values of options, checked, with what was expected where one is wrong.

Owns: the types of options that are not texts. Must not know: commands. Runs on the main thread.
"""

import math
from typing import Any

import click


class Seconds(click.ParamType):  # type: ignore[type-arg]  # not generic in every version that will do
    """A number of seconds within bounds."""

    name = "seconds"

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error names the option, what was given and what was expected."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not self._low <= seconds <= self._high:
            self.fail(f"{value!r}, expected a number of seconds from {self._low:g} to {self._high:g}.", param, ctx)
        return seconds
