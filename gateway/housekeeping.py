"""What the daemon does without being asked, each kind at its own pace.

Owns: when each chore is due, and the health check each one stands for. Must not know: sockets, messages. Runs on the
loop's thread.

A chore that raises does not end the daemon: it is logged when it begins to fail, and its check says why until it works
again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.health import HealthChecks

_log = logging.getLogger("kvgate.housekeeping")


@dataclass
class _Chore:
    check: str
    interval_seconds: float
    step: Callable[[float], str]
    due_at: float = 0.0  # monotonic
    is_failing: bool = False


class Housekeeping:
    """A list of chores, done in the order they were added."""

    def __init__(self, checks: HealthChecks, interval_seconds: float) -> None:
        """Begin with none.

        Args:
            checks: told of every run.
            interval_seconds: how often ``run`` is called, and so the shortest pace of a chore.
        """
        self.interval_seconds = interval_seconds
        self._checks = checks
        self._chores: list[_Chore] = []

    def add(
        self,
        check: str,
        step: Callable[[float], str],
        *,
        every_seconds: float,
        max_age_seconds: float,
        is_critical: bool,
        now: float,
    ) -> None:
        """Have a chore and its health check.

        Args:
            check: name of the check.
            step: does the work at a monotonic time; returns why all is not well, empty when it is.
            every_seconds: its pace.
            max_age_seconds: how long ago it may have run before its check fails.
            is_critical: whether its failure makes the gateway unhealthy.
            now: monotonic.
        """
        self._checks.add(check, is_critical=is_critical, max_age_seconds=max_age_seconds, now=now)
        self._chores.append(_Chore(check, every_seconds, step))

    def run(self, now: float) -> None:
        """Do everything that is due."""
        for chore in self._chores:
            if now >= chore.due_at:
                chore.due_at = now + chore.interval_seconds
                self._checks.ran(chore.check, self._do(chore, now), now)

    def _do(self, chore: _Chore, now: float) -> str:
        try:
            reason = chore.step(now)
        except Exception as error:  # noqa: BLE001 - one chore's defect must not end the daemon for all engines
            if not chore.is_failing:
                _log.exception("chore_failed", extra={"facts": {"check": chore.check}})
            chore.is_failing = True
            return f"{type(error).__name__}: {error}"
        if reason and not chore.is_failing:
            _log.warning("check_failed", extra={"facts": {"check": chore.check, "reason": reason}})
        elif chore.is_failing and not reason:
            _log.info("check_holds_again", extra={"facts": {"check": chore.check}})
        chore.is_failing = bool(reason)
        return reason
