"""Messages of an engine's scheduler half: what is there, leased for a session.

Owns: LOOKUP and what ends its lease. Must not know: copies. Pure.
"""

from gateway.wire.envelope import Reply, Request


class Lookup(Request, frozen=True, kw_only=True, tag="LOOKUP"):
    """How many leading chunks are there, all shards of each; leases them for the session."""

    party: bytes
    session: int
    namespace: bytes
    keys: tuple[bytes, ...]


class Found(Reply, frozen=True, kw_only=True, tag="FOUND"):
    """Answer to LOOKUP: leading chunks found and leased until ``lease_deadline`` (0 when none)."""

    chunks: int
    lease_deadline: float = 0.0


class Release(Request, frozen=True, kw_only=True, tag="RELEASE"):
    """End the session's lease on its chunks [start, end)."""

    party: bytes
    session: int
    start: int
    end: int


class EndSession(Request, frozen=True, kw_only=True, tag="END_SESSION"):
    """End a session and all its leases. A later LOOKUP at or below its number grants nothing."""

    party: bytes
    session: int
