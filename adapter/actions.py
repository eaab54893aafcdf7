"""The ledger's words: what is handed to it, and what it asks its shell to do.

Owns: plain frozen values. Must not know: threads, sockets, memory. Pure.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from adapter.operation import IpcEvent
from gateway.wire.codes import OperationKind, ReserveStatus


class Transfer(NamedTuple):
    """What a store or retrieve covers, in the ledger's own copies. A tuple: the engine's thread makes it.

    Attributes:
        block_ids: ``array('q')``; chunk i covers [i x blocks_per_chunk, (i + 1) x blocks_per_chunk).
        depth: index of ``keys[0]`` in its prompt, in chunks.
        parent: key of the chunk before ``keys[0]``, empty where it is not known.
        skip_blocks: leading blocks a retrieve neither writes nor lists as errors.
        writes: False for a replica's store: it settles ``stored`` with 0 bytes.
    """

    kind: OperationKind
    request_id: str
    keys: tuple[bytes, ...]
    block_ids: array[int]
    blocks_per_chunk: int
    chunk_bytes: int
    depth: int = 0
    parent: bytes = b""
    skip_blocks: int = 0
    writes: bool = True

    def blocks_of(self, chunk: int) -> array[int]:
        """The block ids of one chunk."""
        return self.block_ids[chunk * self.blocks_per_chunk : (chunk + 1) * self.blocks_per_chunk]

    def skipped_in(self, chunk: int) -> int:
        """How many leading blocks of one chunk are skipped."""
        return min(max(self.skip_blocks - chunk * self.blocks_per_chunk, 0), self.blocks_per_chunk)


@dataclass(frozen=True, slots=True)
class Grant:
    """The gateway's answer for one key. ``slot`` < 0: not granted; for a store ``status`` says why."""

    status: ReserveStatus
    slot: int
    offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class Unit:
    """One chunk's copy that may run now. Nothing of its operation settles until ``end_copy``."""

    number: int
    request_id: str
    chunk: int
    kind: OperationKind
    slot: int
    offset: int
    generation: int
    key: bytes
    block_ids: array[int]
    skip_blocks: int


# -- actions: what the shell must do, in order ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Call ``begin``: what an operation needs first is found out off the engine's thread."""

    number: int


@dataclass(frozen=True, slots=True)
class AskReserve:
    """Send RESERVE for these chunks; answer with ``granted`` or ``failed``."""

    number: int
    chunks: tuple[int, ...]
    keys: tuple[bytes, ...]
    depth: int
    parent: bytes
    deadline: float


@dataclass(frozen=True, slots=True)
class AskRead:
    """Send READ for these chunks; answer with ``granted`` or ``failed``."""

    number: int
    chunks: tuple[int, ...]
    keys: tuple[bytes, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class AskCommit:
    """Send COMMIT; answer with ``committed`` or ``failed``."""

    number: int
    chunks: tuple[int, ...]
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TellAbort:
    """Send ABORT for all the operation reserved and did not commit. Heartbeats heal a lost one."""

    number: int


@dataclass(frozen=True, slots=True)
class TellEndRead:
    """Send DONE, which ends the operation's read lease. Its answer does not matter."""

    number: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Poll ``event.query()``: True is ``event_fired``, an exception ``event_failed``; stop when it is gone."""

    number: int
    event: IpcEvent


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """Queue one unit. Its copier asks ``begin_copy`` first and calls ``end_copy`` after."""

    number: int
    chunk: int


@dataclass(frozen=True, slots=True)
class DropEvent:
    """The ledger has given this event up: drop the last reference, off the engine's thread."""

    event: IpcEvent


@dataclass(frozen=True, slots=True)
class AskCopy:
    """Hand an operation over to the gateway; answer with ``answered``, ``refused`` or ``unanswered``."""

    number: int
    kind: OperationKind
    keys: tuple[bytes, ...]
    block_ids: array[int]
    event: IpcEvent | None
    cell: int
    depth: int
    parent: bytes
    skip_blocks: int
    deadline: float


@dataclass(frozen=True, slots=True)
class TellCancel:
    """Send CANCEL; its answer is ``acknowledged``. It is told again until something has settled the operation."""

    number: int
    deadline: float


Action = (
    AskCopy
    | TellCancel
    | Begin
    | AskReserve
    | AskRead
    | AskCommit
    | TellAbort
    | TellEndRead
    | WatchEvent
    | CopyChunk
    | DropEvent
)
