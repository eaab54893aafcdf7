"""One STORE or RETRIEVE that the gateway carries out: its chunks, and why nothing more of it starts.

Owns: what is known of one operation, and how its answer follows. Must not know: threads, sockets, the core. Pure.

Belongs to the loop's thread; copy threads read ``stopped``, ``deadline`` and ``cell`` only.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from gateway.wire.codes import CopyStatus, OperationKind
from gateway.wire.messages import Retrieve, Store

#: Called once with the results and the exported event's handle, when nothing of the operation runs any more.
Finish = Callable[[tuple[CopyStatus, ...], bytes], None]
#: Called once when nothing of the operation runs any more.
Acknowledge = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A chunk's slot in the pool, reserved or leased."""

    slot: int
    offset: int
    generation: int


class Operation:
    """One that is not answered yet."""

    __slots__ = (
        "acknowledges",
        "blocks",
        "blocks_per_chunk",
        "cell",
        "deadline",
        "depth",
        "event",
        "finishes",
        "keys",
        "kind",
        "next_chunk",
        "number",
        "parent",
        "party",
        "places",
        "results",
        "running",
        "skip_blocks",
        "stopped",
        "waits_for_event",
    )

    def __init__(self, request: Store | Retrieve, blocks_per_chunk: int) -> None:
        self.kind = OperationKind.STORE if isinstance(request, Store) else OperationKind.RETRIEVE
        self.party = request.party
        self.number = request.operation
        self.keys = request.keys
        self.blocks = block_ids(request.blocks)
        self.blocks_per_chunk = blocks_per_chunk
        self.deadline = request.deadline
        self.event = request.event
        self.cell = request.cell if isinstance(request, Store) else 0
        self.depth = request.depth if isinstance(request, Store) else 0
        self.parent = request.parent if isinstance(request, Store) else b""
        self.skip_blocks = request.skip_blocks if isinstance(request, Retrieve) else 0
        self.waits_for_event = bool(request.event)
        #: One a chunk; None: it has not ended.
        self.results: list[CopyStatus | None] = [None] * len(self.keys)
        #: Chunks that have a slot and have not ended.
        self.places: dict[int, Place] = {}
        #: The first chunk for which no slot was asked yet.
        self.next_chunk = 0
        #: Units handed to the copy thread and not come back.
        self.running = 0
        #: Why nothing more starts; None: it goes on.
        self.stopped: CopyStatus | None = None
        self.finishes: list[Finish] = []
        self.acknowledges: list[Acknowledge] = []

    def blocks_of(self, chunk: int) -> array[int]:
        """The block ids of one chunk."""
        return self.blocks[chunk * self.blocks_per_chunk : (chunk + 1) * self.blocks_per_chunk]

    def skipped_in(self, chunk: int) -> int:
        """How many leading blocks of one chunk are left as they are."""
        return min(max(self.skip_blocks - chunk * self.blocks_per_chunk, 0), self.blocks_per_chunk)

    def end_chunk(self, chunk: int, status: CopyStatus) -> Place | None:
        """One chunk has ended; returns the slot that it had."""
        self.results[chunk] = status
        return self.places.pop(chunk, None)

    def has_ended(self) -> bool:
        """Whether nothing runs and nothing will."""
        return self.running == 0 and (self.stopped is not None or None not in self.results)

    def answer(self) -> tuple[CopyStatus, ...]:
        """One status a chunk; what never ran has the reason why."""
        rest = self.stopped or CopyStatus.CANCELLED
        return tuple(rest if result is None else result for result in self.results)


def block_ids(packed: bytes) -> array[int]:
    """Block ids as the copies take them, from how they cross the wire."""
    return array("q", struct.unpack(f"<{len(packed) // 4}I", packed))
