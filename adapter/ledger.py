"""The transfer ledger: every store and retrieve of one worker, from submit to settled.

Surface frozen; the body is being written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapter.operation import IpcEvent
from gateway.wire.codes import CommitStatus, OperationKind, Reason, ReserveStatus, Trigger
from gateway.wire.messages import OperationInfo


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a store or retrieve covers, in the ledger's own copies."""

    kind: OperationKind
    request_id: str
    keys: tuple[bytes, ...]
    block_ids: array[int]  # 'q'; chunk i covers [i * blocks_per_chunk, (i + 1) * blocks_per_chunk)
    blocks_per_chunk: int
    chunk_bytes: int
    depth: int = 0
    parent: bytes = b""
    skip_blocks: int = 0  # leading blocks a retrieve neither writes nor lists
    writes: bool = True  # False: a replica's store, settled `stored` with 0 bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The gateway's answer for one key. ``slot`` < 0: not granted, for ``status``."""

    status: ReserveStatus
    slot: int
    offset: int
    generation: int


# -- actions: what the shell must do, in order ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskReserve:
    """Send RESERVE for these chunks of the operation; answer with ``granted``, ``refused`` or ``failed``."""

    number: int
    chunks: tuple[int, ...]
    keys: tuple[bytes, ...]
    depth: int
    parent: bytes
    deadline: float


@dataclass(frozen=True, slots=True)
class AskRead:
    """Send READ for all chunks of the operation; answer with ``granted``, ``refused`` or ``failed``."""

    number: int
    chunks: tuple[int, ...]
    keys: tuple[bytes, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class AskCommit:
    """Send COMMIT; answer with ``committed`` or ``commit_failed``."""

    number: int
    chunks: tuple[int, ...]
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TellAbort:
    """Send ABORT for all the operation reserved; its answer does not matter (PING heals a lost one)."""

    number: int


@dataclass(frozen=True, slots=True)
class TellEndRead:
    """Send DONE; its answer does not matter."""

    number: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Poll ``event.query()`` until it is True (``event_fired``), raises (``event_failed``), or the operation is gone."""

    number: int
    event: IpcEvent


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """Queue one unit. Its copier asks ``begin_copy`` first, and calls ``end_copy`` after."""

    number: int
    chunk: int


@dataclass(frozen=True, slots=True)
class DropEvent:
    """The ledger has given this event up: drop the last reference, off the engine's thread."""

    event: IpcEvent


Action = AskReserve | AskRead | AskCommit | TellAbort | TellEndRead | WatchEvent | CopyChunk | DropEvent


@dataclass(frozen=True, slots=True)
class Unit:
    """One chunk's copy that may run now. Nothing of the operation settles until ``end_copy``."""

    number: int
    chunk: int
    kind: OperationKind
    slot: int
    offset: int
    generation: int
    key: bytes
    block_ids: array[int]
    skip_blocks: int  # leading blocks of this chunk not to write (retrieve)


class Ledger:
    """Pure; the caller serializes calls. Every step returns the actions it calls for. ``now`` is monotonic seconds."""

    def __init__(
        self, *, max_pending_ops: int, max_pending_bytes: int, operation_deadline_seconds: float, verify: bool = False
    ) -> None: ...

    # engine side
    def submit(self, transfer: Transfer, event: IpcEvent | None, *, refuse: Reason, now: float, wall: float) -> tuple[int, list[Action]]:
        """Begin an operation. ``refuse`` other than NONE: it settles at once, refused with that reason."""

    def revoke(self, block_ids: Iterable[int], now: float) -> list[Action]: ...
    def preempt(self, request_ids: Iterable[str], now: float) -> list[Action]: ...
    def take_finished(self, held_ids: Iterable[str]) -> tuple[set[str], set[str]]: ...
    def take_load_errors(self) -> set[int]: ...
    def take_failed_requests(self) -> set[str]: ...
    def has_unsettled(self, request_ids: Iterable[str] | None = None) -> bool: ...

    # answers of the gateway
    def granted(self, number: int, chunks: Sequence[int], grants: Sequence[Grant], now: float) -> list[Action]: ...
    def refused(self, number: int, chunks: Sequence[int], reason: Reason, retry_after_seconds: float, now: float) -> list[Action]: ...
    def failed(self, number: int, chunks: Sequence[int], reason: Reason, now: float) -> list[Action]: ...
    def committed(self, number: int, chunks: Sequence[int], results: Sequence[CommitStatus], now: float) -> list[Action]: ...
    def commit_failed(self, number: int, chunks: Sequence[int], reason: Reason, now: float) -> list[Action]: ...

    # event and copier
    def event_fired(self, number: int, now: float) -> list[Action]: ...
    def event_failed(self, number: int, now: float) -> list[Action]: ...
    def is_waiting_for_event(self, number: int) -> bool: ...
    def begin_copy(self, number: int, chunk: int, now: float) -> Unit | None: ...  # None: given up meanwhile
    def end_copy(self, number: int, chunk: int, reason: Reason, now: float) -> list[Action]: ...  # NONE: copied and verified

    # clean-up and time
    def drain(self, trigger: Trigger, deadline: float, now: float) -> list[Action]: ...  # grants run on until the deadline
    def settle_all(self, trigger: Trigger, now: float) -> list[Action]: ...
    def end_drain(self) -> None: ...
    def tick(self, now: float) -> list[Action]: ...
    def next_deadline(self) -> float: ...  # monotonic time of the next thing tick would do; inf when none

    # readings
    @property
    def next_number(self) -> int: ...
    @property
    def running_units(self) -> int: ...
    def unsettled_numbers(self) -> tuple[int, ...]: ...
    def pending_counts(self) -> PendingCounts: ...
    def pending_operations(self, now: float, limit: int = 64) -> tuple[OperationInfo, ...]: ...
    def take_settled(self) -> tuple[OperationInfo, ...]: ...  # since the last call, bounded: for heartbeats
    @property
    def totals(self) -> Totals: ...  # counters that only grow
    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """The ledger's gauges, read in one step."""

    stores: int
    retrieves: int
    events: int
    settling: int
    oldest_wall: float  # 0 when none


@dataclass(slots=True)
class Totals:
    """Counters of the ledger; keys are the enumerations' values."""

    operations: dict[tuple[str, str], int]  # (kind, outcome)
    settled_by: dict[str, int]  # proof
    drains: dict[str, int]  # trigger
    bytes: dict[str, int]  # kind
    durations: dict[str, list[int]]  # kind -> counts by DURATION_BUCKETS, then +Inf
    duration_sums: dict[str, float]
    loaded_tokens_chunks: int = 0  # chunks loaded; skipped blocks are the shell's to subtract
    wasted: dict[str, int] | None = None  # chunks by reason: load_failed, store_failed, revoked
