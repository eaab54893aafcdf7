"""What a caller hands over: the event that orders a copy, and the blocks of one store or retrieve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gateway.wire import keys as wire_keys

if TYPE_CHECKING:
    from adapter.identity import CacheIdentity


@runtime_checkable
class IpcEvent(Protocol):
    """A device event that orders the copy after the engine's compute. ``torch.cuda.Event`` fits."""

    def query(self) -> bool:
        """Whether everything recorded before the event is done. Never blocks."""
        ...

    def ipc_handle(self) -> bytes:
        """The event's handle for another process; used in handle mode only."""
        ...


@dataclass(frozen=True)
class LoadStoreOp:
    """One store or retrieve of the chunks of tokens [start, end) of a prompt.

    Attributes:
        keys: one 32-byte key a chunk of [start, end); ``keys[0]`` is the chunk at ``start``.
        block_ids: the engine's blocks of [start, end), ``(end - start) / block_tokens`` of them.
        start: first token, on a chunk edge.
        end: token after the last, on a chunk edge; None: ``start + len(keys) x chunk_tokens``.
        skip_first_tokens: from ``start``, a multiple of block_tokens: those blocks are neither written nor listed as
            errors.
        parent: key of the chunk before ``start`` where it is known.

    Checked against an identity at submit, where ValueError is raised and nothing changes.
    """

    keys: Sequence[bytes]
    block_ids: Sequence[int]
    start: int = 0
    end: int | None = None
    skip_first_tokens: int = 0
    parent: bytes | None = None

    @classmethod
    def from_tokens(  # noqa: PLR0917 - the fields of the class, in its order
        cls,
        token_ids: Sequence[int],
        block_ids: Sequence[int],
        identity: CacheIdentity,
        start: int = 0,
        end: int | None = None,
        skip_first_tokens: int = 0,
        cache_salt: str = "",
        extra_keys: Sequence[bytes | None] | None = None,
    ) -> LoadStoreOp:
        """An operation from the whole prefix from token 0; a partial last chunk is dropped.

        Args:
            token_ids: all tokens from 0 to at least ``end``.
            block_ids: blocks of [start, end) only.
            identity: the chunk size, and whose the chunks are.
            start: first token of the operation, on a chunk edge.
            end: token after its last, on a chunk edge; None: all full chunks.
            skip_first_tokens: as in the class.
            cache_salt: keeps tenants apart; empty equals none.
            extra_keys: None, or one ``bytes | None`` for each full chunk of ``token_ids``.

        Raises:
            ValueError: token ids, edges or lengths do not fit.
        """
        chunk = identity.chunk_tokens
        chain = wire_keys.chunk_chain(
            wire_keys.root_key(cache_salt), wire_keys.token_bytes(token_ids), chunk, extra_keys
        )
        full = len(chain) * chunk
        stop = full if end is None else end
        if start % chunk or stop % chunk or not 0 <= start <= stop <= full:
            raise ValueError(
                f"start {start} and end {stop} must lie on edges of {chunk} tokens, 0 <= start <= end <= {full}"
            )
        first, last = start // chunk, stop // chunk
        return cls(
            keys=tuple(chain[first:last]),
            block_ids=tuple(block_ids),
            start=start,
            end=stop,
            skip_first_tokens=skip_first_tokens,
            parent=chain[first - 1] if first else None,
        )
