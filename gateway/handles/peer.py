"""One worker that the gateway copies for: its memory, opened here, and its line.

Owns: what was opened for it, and how one unit is copied and judged. Must not know: the core, messages' ways. Made on
the loop's thread; ``copy`` and ``close`` run on the line's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from gateway.core.types import Refusal
from gateway.device.base import BlockCopier, Device, DeviceError, OpenedMemory
from gateway.device.copy import Region
from gateway.device.host import HostDevice
from gateway.handles.line import Unit
from gateway.pool.mapping import PoolMapping, acquire_fence
from gateway.wire.codes import CopyStatus, ErrorCode, OperationKind
from gateway.wire.messages import HandleOffer, Register

_log = logging.getLogger("kvgate.handles")

#: Rows of one KV cache: a thousand layers of keys and values.
MAX_REGIONS = 4096


class Peer:
    """What was opened for one worker. ``close`` when its line has ended.

    Attributes:
        blocks_per_chunk: engine's blocks that make a chunk.
        num_blocks: of the KV cache.
        num_cells: of the withdrawal board.
    """

    def __init__(
        self,
        request: Register,
        device: Device,
        host: HostDevice,
        mapping: PoolMapping,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open what the worker offers.

        Raises:
            Refusal: INCOMPATIBLE: a handle does not open; INVALID: its numbers make no sense. Nothing stays open.
        """
        offer = request.offer
        if offer is None:
            raise Refusal(ErrorCode.INVALID, "transfer is handle, and no memory was offered")
        block_bytes = _check(offer)
        if not 0 < block_bytes <= request.chunk_bytes or request.chunk_bytes % block_bytes:
            raise Refusal(
                ErrorCode.INVALID,
                f"chunk_bytes is {request.chunk_bytes}, expected a multiple of {block_bytes}, a block",
            )
        self.party = request.party
        self.engine = request.engine
        self.device = device
        self.blocks_per_chunk = request.chunk_bytes // block_bytes
        self.num_blocks = offer.num_blocks
        self.num_cells = offer.board.nbytes
        self.is_leaving = False
        self._mapping = mapping
        self._clock = clock
        self._is_pinned = False  # the pool, for the device: by the first copy, off the loop's thread
        with contextlib.ExitStack() as opened:
            try:
                memories = [_open(device, memory.handle, memory.nbytes, opened) for memory in offer.memories]
                board = host.open_memory(offer.board.handle, offer.board.nbytes, is_sealed=True)
                opened.callback(board.close)
                regions = [
                    Region(memories[one.memory].address + one.offset, one.stride_bytes, one.row_bytes)
                    for one in offer.regions
                ]
                self._memories = memories
                self._copier: BlockCopier = device.copier(regions, offer.num_blocks)
            except DeviceError as error:
                raise Refusal(ErrorCode.INCOMPATIBLE, f"this gateway cannot copy for this worker: {error}") from None
            self._board = board.view()
            opened.callback(self._board.release)
            self._opened = opened.pop_all()

    def copy(self, unit: Unit) -> CopyStatus:
        """Copy one unit; COPIED: all of it, in time, and wanted still.

        A store that was not wholly copied before its deadline is not published: from then on its blocks may be others'.
        So is one that was withdrawn on the board while it was copied. Both are asked *after* the last byte.
        """
        operation = unit.operation
        if operation.stopped is not None:
            return operation.stopped
        if self._clock() >= operation.deadline:
            return CopyStatus.EXPIRED
        blocks, address = operation.blocks_of(unit.chunk), self._mapping.data_address + unit.place.offset
        is_store = operation.kind is OperationKind.STORE
        if not self._is_pinned:
            self._is_pinned = True
            self.device.pin(self._mapping.data_address, self._mapping.data_bytes)
        try:
            for memory in self._memories:
                memory.check()
            if is_store:
                self._copier.gather(blocks, address)
            else:
                self._copier.scatter(blocks, address, operation.skipped_in(unit.chunk))
        except Exception:  # noqa: BLE001 - whatever a driver raises ends this chunk, and not the line
            _log.exception("copy_failed", extra={"facts": {"party": operation.party.hex(), "op": operation.number}})
            return CopyStatus.COPY_ERROR
        acquire_fence()
        if is_store:
            return self._judge_store(unit)
        key, generation = operation.keys[unit.chunk], unit.place.generation
        return CopyStatus.COPIED if self._mapping.holds(unit.place.slot, key, generation) else CopyStatus.CHANGED

    def _judge_store(self, unit: Unit) -> CopyStatus:
        if self._board[unit.operation.cell]:
            return CopyStatus.CANCELLED
        return CopyStatus.COPIED if self._clock() < unit.operation.deadline else CopyStatus.EXPIRED

    def close(self) -> None:
        """Close all that was opened. No copy may be running."""
        del self._copier
        self._opened.close()


def _open(device: Device, handle: bytes, nbytes: int, opened: contextlib.ExitStack) -> OpenedMemory:
    memory = device.open_memory(handle, nbytes)
    opened.callback(memory.close)
    return memory


def _check(offer: HandleOffer) -> int:
    """Bytes of one block over all rows.

    Raises:
        Refusal: INVALID; a row lies outside of its memory.
    """
    if not 0 < len(offer.regions) <= MAX_REGIONS or not 0 < len(offer.memories) <= MAX_REGIONS:
        raise Refusal(
            ErrorCode.INVALID,
            f"{len(offer.regions)} rows in {len(offer.memories)} memories, expected 1 to {MAX_REGIONS} of both",
        )
    for one in offer.regions:
        size = offer.memories[one.memory].nbytes if 0 <= one.memory < len(offer.memories) else -1
        end = one.offset + (offer.num_blocks - 1) * one.stride_bytes + one.row_bytes
        if min(one.offset, one.row_bytes - 1, offer.num_blocks - 1, one.stride_bytes - one.row_bytes) < 0 or end > size:
            raise Refusal(
                ErrorCode.INVALID, f"{one} of {offer.num_blocks} blocks does not lie in its memory of {size} bytes"
            )
    return sum(one.row_bytes for one in offer.regions)
