"""Messages of a worker half for which the gateway copies (handle mode).

Owns: what a worker offers at registration, STORE, RETRIEVE, CANCEL and RELEASE_EVENT. Must not know: who copies when,
what a handle is made of. Pure.

A worker in handle mode names blocks instead of asking for slots. Each STORE or RETRIEVE is answered once, when nothing
of it runs any more, with one status a chunk.
"""

import msgspec

from gateway.wire.codes import CopyStatus
from gateway.wire.envelope import Reply, Request


class SharedMemory(msgspec.Struct, frozen=True, array_like=True):
    """One allocation of the engine's, by handle."""

    handle: bytes
    nbytes: int


class SharedRegion(msgspec.Struct, frozen=True, array_like=True):
    """One row of one layer: block ``b`` lies at ``offset + b * stride_bytes`` of memory number ``memory``."""

    memory: int
    offset: int
    stride_bytes: int
    row_bytes: int


class HandleOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway needs to copy from and to a worker's KV cache.

    Attributes:
        device: where it lies, and so how its handles are encoded: ``cpu``, ``cuda:0``.
        memories: the allocations.
        regions: rows of the cache, in the order they have in a slot.
        num_blocks: of the cache.
        board: the withdrawal board, in host memory: one byte a cell. Once a cell is not 0, nothing of the operation
            that was given it is published.
    """

    device: str
    memories: tuple[SharedMemory, ...]
    regions: tuple[SharedRegion, ...]
    num_blocks: int
    board: SharedMemory


class Store(Request, frozen=True, kw_only=True, tag="STORE"):
    """Copy blocks into the pool. ``deadline`` is the operation's: no unit starts then or later, none is published.

    Attributes:
        blocks: block ids of all chunks in token order, as unsigned 32-bit little-endian numbers.
        event: handle of the event behind the engine's compute; empty: it is done.
        cell: of the withdrawal board; the operation's own until it is settled.
        depth: index of ``keys[0]`` in its prompt, in chunks.
        parent: key of the chunk before ``keys[0]`` where it is known, else empty.
    """

    party: bytes
    operation: int
    keys: tuple[bytes, ...]
    blocks: bytes
    event: bytes = b""
    cell: int = 0
    depth: int = 0
    parent: bytes = b""


class Retrieve(Request, frozen=True, kw_only=True, tag="RETRIEVE"):
    """Copy chunks from the pool into blocks; ``blocks``, ``event`` and ``deadline`` as in STORE.

    Attributes:
        skip_blocks: leading blocks that are left as they are.
    """

    party: bytes
    operation: int
    keys: tuple[bytes, ...]
    blocks: bytes
    event: bytes = b""
    skip_blocks: int = 0


class Copied(Reply, frozen=True, kw_only=True, tag="COPIED"):
    """Answer to STORE and RETRIEVE: nothing of the operation runs any more.

    Attributes:
        results: one a chunk, in order.
        event: of a RETRIEVE: handle of the event behind its last copy. The gateway keeps it until RELEASE_EVENT.
    """

    results: tuple[CopyStatus, ...]
    event: bytes = b""


class Cancel(Request, frozen=True, kw_only=True, tag="CANCEL"):
    """End an operation. Done is answered when no unit of it runs; none starts later, whatever is still on its way.

    ``deadline`` is the operation's: until then its number is remembered.
    """

    party: bytes
    operation: int


class ReleaseEvent(Request, frozen=True, kw_only=True, tag="RELEASE_EVENT"):
    """The event of a RETRIEVE's answer was waited for: the gateway may drop it."""

    party: bytes
    operation: int
