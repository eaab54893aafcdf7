"""One operation of the ledger while it is not settled: its chunks, and what can be read from them.

Owns: the state of each chunk and the phase and outcome that follow from them. Must not know: other operations, actions,
the time. Pure.
"""

from __future__ import annotations

from enum import IntEnum

from adapter.actions import Grant, Transfer
from adapter.operation import IpcEvent
from gateway.wire.codes import OperationKind, OutcomeKind, Phase, Reason

_REFUSALS = frozenset(
    {
        Reason.NOT_HEALTHY,
        Reason.DRAINING,
        Reason.PENDING_OPS,
        Reason.PENDING_BYTES,
        Reason.BUSY,
        Reason.FULL,
        Reason.QUOTA,
        Reason.REFUSED_BY_GATEWAY,
    }
)


class ChunkState(IntEnum):
    """Where one chunk of an operation stands. DONE and LOST are final."""

    TODO = 0  # not asked for yet
    ASKED = 1  # RESERVE or READ is under way
    GRANTED = 2  # it has a slot; its copy has not begun
    RUNNING = 3  # a unit copies it
    COPIED = 4  # a store's: COMMIT is under way
    DONE = 5
    LOST = 6


TODO, ASKED, GRANTED, RUNNING, COPIED, DONE, LOST = ChunkState
NOT_BEGUN = (TODO, ASKED, GRANTED)
NOT_COPIED = (TODO, ASKED, GRANTED, RUNNING)


class Operation:
    """One store or retrieve that is not settled."""

    __slots__ = (
        "asks",
        "block_set",
        "deadline",
        "ending",
        "event",
        "ever_asked",
        "ever_ran",
        "fired",
        "first_loss",
        "grants",
        "number",
        "states",
        "submitted",
        "tally",
        "transfer",
        "wall",
    )

    def __init__(  # noqa: PLR0917  # made in one place
        self, number: int, transfer: Transfer, event: IpcEvent | None, now: float, wall: float, deadline: float
    ) -> None:
        num_chunks = len(transfer.keys)
        self.number = number
        self.transfer = transfer
        self.event = event
        self.fired = event is None  #: whether the engine's compute is done
        self.submitted = now
        self.wall = wall
        self.deadline = deadline
        self.states: list[ChunkState] = [TODO] * num_chunks
        self.tally = [num_chunks, 0, 0, 0, 0, 0, 0]  #: chunks by state; agrees with ``states``
        self.grants: list[Grant | None] = [None] * num_chunks
        self.first_loss = Reason.NONE  #: why the first lost chunk was lost
        self.ending: tuple[OutcomeKind, Reason] | None = None  #: set once it was given up
        self.asks = 0  #: RESERVE or READ requests under way
        self.ever_asked = False
        self.ever_ran = False
        self.block_set: frozenset[int] | None = None  #: of ``transfer.block_ids``, built when first compared

    @property
    def kind(self) -> OperationKind:
        """Store or retrieve."""
        return self.transfer.kind

    @property
    def phase(self) -> Phase:
        """Read from the chunks."""
        if self.ending is not None:
            return Phase.SETTLING
        if not any(self.tally[state] for state in NOT_COPIED):
            return Phase.CLOSING
        return Phase.COPYING if self.ever_ran else Phase.WAITING

    def move(self, chunk: int, state: ChunkState) -> None:
        """Bring one chunk into another state."""
        self.tally[self.states[chunk]] -= 1
        self.tally[state] += 1
        self.states[chunk] = state

    def lose(self, chunk: int, reason: Reason) -> None:
        """One chunk is lost, for this reason."""
        self.move(chunk, LOST)
        self.grants[chunk] = None
        if self.first_loss is Reason.NONE:
            self.first_loss = reason

    def chunks_in(self, *states: ChunkState) -> list[int]:
        """The chunks in any of these states, in order."""
        if not any(self.tally[state] for state in states):
            return []
        return [chunk for chunk, state in enumerate(self.states) if state in states]

    def reads_any(self, blocks: frozenset[int]) -> bool:
        """Whether a chunk that is not copied yet lies in any of these blocks."""
        if self.block_set is None:
            self.block_set = frozenset(self.transfer.block_ids)
        if self.block_set.isdisjoint(blocks):
            return False
        return any(not blocks.isdisjoint(self.transfer.blocks_of(chunk)) for chunk in self.chunks_in(*NOT_COPIED))

    def unfilled_blocks(self) -> list[int]:
        """A retrieve's blocks that were not filled and should have been."""
        transfer = self.transfer
        return [
            block
            for chunk, state in enumerate(self.states)
            if state is not DONE
            for block in transfer.blocks_of(chunk)[transfer.skipped_in(chunk) :]
        ]

    def outcome(self) -> tuple[OutcomeKind, Reason]:
        """How it ended, once every chunk is final or it was given up."""
        if self.tally[DONE] == len(self.states):
            return (OutcomeKind.STORED if self.kind is OperationKind.STORE else OutcomeKind.LOADED), Reason.NONE
        if self.ending is not None:
            return self.ending
        if self.tally[DONE]:
            return OutcomeKind.PARTIAL, self.first_loss
        return (OutcomeKind.REFUSED if self.first_loss in _REFUSALS else OutcomeKind.FAILED), self.first_loss
