"""What a half of an adapter says in its engine's log: one line an event, with the engine's name, and never many.

Owns: the shape of a line and its bound. Must not know: who says what. Any thread.

The engine's own handlers write the line, so all of it stands in the message: ``event engine=… name=value …``. Handlers
that want more than text find ``record.event`` and ``record.facts``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gateway.log import AUDIT, Bound, readable

logger = logging.getLogger("kvgate.adapter")
_audit_logger = logging.getLogger(AUDIT)

#: Of one half. An engine that has both in one process writes twice as many at most.
LINES_A_SECOND = 5
#: The same event for the same reason is told again after so long, and ever more rarely from then on. It is longer than
#: in the gateway's own log: this one is the engine's.
FIRST_GAP_SECONDS = 60.0


class EngineLog:
    """The voice of one half.

    Args:
        engine: its name, told with every line.
        clock: monotonic seconds; a seam for tests.
    """

    def __init__(self, engine: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._bound = Bound(LINES_A_SECOND, FIRST_GAP_SECONDS)

    def info(self, event: str, **facts: object) -> None:
        """Say what happened."""
        self._say(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Say what somebody should know."""
        self._say(logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Say what is wrong."""
        self._say(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Say what was raised, with its traceback. From an ``except`` clause."""
        self._say(logging.ERROR, event, facts, has_traceback=True)

    def audit(self, **facts: object) -> None:
        """Write down what an operator asked for: every time, whatever the bound."""
        facts = {"engine": self._engine, **facts}
        _audit_logger.info("%s", readable("audit", facts), extra={"event": "audit", "facts": facts})

    def _say(self, level: int, event: str, facts: dict[str, object], *, has_traceback: bool = False) -> None:
        if not logger.isEnabledFor(level):
            return
        facts = {"engine": self._engine, **facts}
        counts = self._bound.admit(event, facts, self._clock())
        if counts is not None:
            facts |= counts
            extra = {"event": event, "facts": facts}
            logger.log(level, "%s", readable(event, facts), exc_info=has_traceback, extra=extra)
