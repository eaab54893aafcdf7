"""What a link asks of the half of an adapter that it serves.

Owns: that interface. Must not know: links, either half.
"""

from pathlib import Path
from typing import Protocol

from gateway.wire.codes import Trigger
from gateway.wire.messages import Ping, Pong, Register, Reply


class PoolUnusableError(Exception):
    """This party cannot use the gateway's pool. ``is_lasting``: not before one side is another version."""

    def __init__(self, message: str, *, is_lasting: bool) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class Half(Protocol):
    """The half of an adapter that a link serves. Every call but ``release`` comes with the link's lock held."""

    def register_message(self, party: bytes) -> Register | None:
        """What this half says of itself. None: it has nothing to register yet, and will ``announce`` it.

        Raises:
            PoolUnusableError: it cannot make ready for what it would say.
        """
        ...

    def ping_message(self, party: bytes) -> Ping:
        """What a heartbeat carries."""
        ...

    def prepare(self, pool: Path, pool_id: bytes) -> None:
        """Make ready for grants in this pool, before the registration. On the link thread; no unit runs.

        Raises:
            PoolUnusableError: it cannot.
        """
        ...

    def is_idle(self) -> bool:
        """Whether no copy runs: the lock may be given up, a new boot registered with."""
        ...

    def gateway_died(self, now: float) -> None:
        """The daemon that this party registered with is proven dead. May be said more than once."""
        ...

    def settle(self, trigger: Trigger) -> None:
        """Give up all pending work."""
        ...

    def wind_down(self, trigger: Trigger, deadline: float) -> None:
        """Take no new work; what is granted runs on to the deadline."""
        ...

    def end_drain(self) -> None:
        """Work is accepted again."""
        ...

    def heard_pong(self, ping: Ping, pong: Pong) -> None:
        """A heartbeat was answered."""
        ...

    def heard_late(self, reply: Reply) -> None:
        """A reply came whose request had been given up."""
        ...

    def tick(self, now: float) -> float:
        """Let time pass; returns when something is due next (monotonic)."""
        ...

    def release(self) -> None:
        """The link ends, no copy runs and none will: give everything up. Called without the lock: it may take long."""
        ...
