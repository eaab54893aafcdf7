"""Messages of a worker half that copies by itself (pool mode): rights to fill slots and to read them.

Owns: RESERVE, COMMIT, ABORT, READ and DONE. Must not know: who copies when. Pure.
"""

import msgspec

from gateway.wire.codes import CommitStatus, ReserveStatus
from gateway.wire.envelope import Reply, Request


class Reserve(Request, frozen=True, kw_only=True, tag="RESERVE"):
    """Right to fill one slot a key. Repeating it for the same operation gives the same grants.

    Attributes:
        depth: index of ``keys[0]`` in its prompt, in chunks.
        parent: key of the chunk before ``keys[0]`` where it is known, else empty: a prefix is touched after its suffix.
    """

    party: bytes
    operation: int
    keys: tuple[bytes, ...]
    depth: int = 0
    parent: bytes = b""


class SlotGrant(msgspec.Struct, frozen=True, array_like=True):
    """Answer for one key of a RESERVE. ``generation`` is also the reservation's id: never reused, in any boot."""

    status: ReserveStatus
    slot: int = -1
    offset: int = 0
    generation: int = 0


class Reserved(Reply, frozen=True, kw_only=True, tag="RESERVED"):
    """Answer to RESERVE, one grant a key, in order. ``deadline``: quarantine after it unless renewed by PING."""

    pool_id: bytes
    grants: tuple[SlotGrant, ...]
    reservation_deadline: float = 0.0


class Commit(Request, frozen=True, kw_only=True, tag="COMMIT"):
    """These reservations (by generation) are filled, completely. Executed whatever the state or the deadline."""

    party: bytes
    operation: int
    pool_id: bytes
    reservations: tuple[int, ...]


class Committed(Reply, frozen=True, kw_only=True, tag="COMMITTED"):
    """Answer to COMMIT, one status a reservation, in order."""

    results: tuple[CommitStatus, ...]


class Abort(Request, frozen=True, kw_only=True, tag="ABORT"):
    """No unit of the operation writes any more: free what it reserved and did not commit; no ``reservations``: all."""

    party: bytes
    operation: int
    reservations: tuple[int, ...] = ()


class Read(Request, frozen=True, kw_only=True, tag="READ"):
    """Right to read the slots of these keys, until the operation is done."""

    party: bytes
    operation: int
    keys: tuple[bytes, ...]


class ReadSlot(msgspec.Struct, frozen=True, array_like=True):
    """Where one key lies. ``slot`` -1: it is not there."""

    slot: int = -1
    offset: int = 0
    generation: int = 0


class Readable(Reply, frozen=True, kw_only=True, tag="READABLE"):
    """Answer to READ, one a key, in order."""

    pool_id: bytes
    slots: tuple[ReadSlot, ...]
    lease_deadline: float = 0.0


class EndRead(Request, frozen=True, kw_only=True, tag="DONE"):
    """End the operation's read lease."""

    party: bytes
    operation: int
