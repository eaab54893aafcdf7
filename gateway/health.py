"""Health: named checks, each with the time it last ran.

Owns: which checks there are, how old each may be, and what they add up to. Must not know: how anything is checked, the
time (it is passed in). Runs on the loop's thread; pure.
"""

from dataclasses import dataclass

from gateway.wire.codes import Health
from gateway.wire.messages import CheckInfo


@dataclass
class _Check:
    name: str
    is_critical: bool
    max_age_seconds: float
    ran_at: float  # monotonic
    reason: str = ""  # empty: it held when it last ran

    def reason_now(self, now: float) -> str:
        """Why the check does not hold; empty when it does. A check that has not run for too long does not hold."""
        age = now - self.ran_at
        if age > self.max_age_seconds:
            return f"{self.name} has not run for {age:.1f} s, at most {self.max_age_seconds:g} s are allowed"
        return self.reason


class HealthChecks:
    """A fixed set of checks. A failed critical one makes the gateway unhealthy, any other degraded."""

    def __init__(self) -> None:
        self._checks: dict[str, _Check] = {}

    def add(self, name: str, *, is_critical: bool, max_age_seconds: float, now: float) -> None:
        """Have a check; it holds until it first fails or grows too old."""
        self._checks[name] = _Check(name, is_critical, max_age_seconds, now)

    def ran(self, name: str, reason: str, now: float) -> None:
        """A check ran; ``reason`` says why it does not hold and is empty when it does."""
        check = self._checks[name]
        check.ran_at = now
        check.reason = reason

    def skip(self, seconds: float) -> None:
        """Do not count a time in which this process did not run as the checks' age."""
        for check in self._checks.values():
            check.ran_at += seconds

    def health(self, now: float) -> tuple[Health, str]:
        """What the checks add up to, and the first reason against it."""
        health, first_reason = Health.HEALTHY, ""
        for check in self._checks.values():
            reason = check.reason_now(now)
            if reason and check.is_critical:
                return Health.UNHEALTHY, reason
            if reason and not first_reason:
                health, first_reason = Health.DEGRADED, reason
        return health, first_reason

    def age_seconds(self, name: str, now: float) -> float:
        """Time since a check last ran."""
        return max(0.0, now - self._checks[name].ran_at)

    def readings(self, now: float) -> tuple[CheckInfo, ...]:
        """Every check as an operator sees it."""
        return tuple(
            CheckInfo(
                name=check.name,
                ok=not (reason := check.reason_now(now)),
                critical=check.is_critical,
                age_seconds=self.age_seconds(check.name, now),
                reason=reason,
            )
            for check in self._checks.values()
        )
