"""A worker in handle mode over a bare socket: its KV cache is shared memory of this process, its events are its own."""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.device.host import HostMemory
from gateway.device.host_event import HostEvent
from gateway.device.passing import SOCKET, send
from gateway.wire.codes import CopyStatus, TransferMode
from gateway.wire.messages import (
    AnyReply,
    Cancel,
    Copied,
    HandleOffer,
    Register,
    ReleaseEvent,
    Retrieve,
    SharedMemory,
    SharedRegion,
    Store,
)
from tests.support.party import CHUNK_BYTES, RawParty, chunk_bytes, chunk_key

BLOCKS_PER_CHUNK = 4
BLOCK_BYTES = CHUNK_BYTES // BLOCKS_PER_CHUNK
NUM_BLOCKS = 64
NUM_CELLS = 256


class HandleParty(RawParty):
    """One KV cache of one layer, ``[64 blocks, 16 KiB]``; chunk ``i`` lies in blocks ``4 * i`` to ``4 * i + 3``."""

    def __init__(self, run_dir: Path, **names) -> None:
        super().__init__(run_dir, **names)
        self.memory = HostMemory.make(NUM_BLOCKS * BLOCK_BYTES)
        self.board = HostMemory.make(NUM_CELLS)
        self.deadline_seconds = 10.0

    def offer(self, device: str = "cpu") -> HandleOffer:
        memory, board = self.memory.export(), self.board.export()
        send(self._run_dir / SOCKET, [(memory.handle, memory.fd), (board.handle, board.fd)])
        return HandleOffer(
            device=device,
            memories=(SharedMemory(memory.handle, memory.nbytes),),
            regions=(SharedRegion(0, 0, BLOCK_BYTES, BLOCK_BYTES),),
            num_blocks=NUM_BLOCKS,
            board=SharedMemory(board.handle, board.nbytes),
        )

    def register_message(self, *, holds_nothing: bool = True) -> Register:
        return self._register(holds_nothing, transfer=TransferMode.HANDLE, offer=self.offer())

    # -- blocks
    def fill(self, place: int, number: int) -> None:
        """Write the bytes that belong to a key into the blocks of this place."""
        self.memory[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES] = chunk_bytes(number)

    def read_place(self, place: int) -> bytes:
        return self.memory[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES]

    def event(self) -> HostEvent:
        return HostEvent(self._run_dir)

    # -- requests
    def store_message(
        self, numbers: Sequence[int], operation: int, *, places: Sequence[int] | None = None, **fields
    ) -> Store:
        return Store(
            number=0,
            party=self.id,
            operation=operation,
            keys=tuple(chunk_key(number) for number in numbers),
            blocks=_blocks(range(len(numbers)) if places is None else places),
            **{"deadline": time.monotonic() + self.deadline_seconds, **fields},
        )

    def retrieve_message(self, numbers: Sequence[int], operation: int, places: Sequence[int]) -> Retrieve:
        return Retrieve(
            number=0,
            party=self.id,
            operation=operation,
            keys=tuple(chunk_key(number) for number in numbers),
            blocks=_blocks(places),
            deadline=time.monotonic() + self.deadline_seconds,
        )

    def cancel_message(self, operation: int) -> Cancel:
        return Cancel(number=0, party=self.id, operation=operation, deadline=time.monotonic() + self.deadline_seconds)

    def release_event(self, operation: int) -> AnyReply:
        return self.dealer.ask(ReleaseEvent(number=0, party=self.id, operation=operation))

    def copy(self, message: Store | Retrieve) -> tuple[CopyStatus, ...]:
        """Ask, and wait for the answer."""
        reply = self.dealer.ask(message, 15.0)
        assert isinstance(reply, Copied), reply
        return reply.results


def _blocks(places: Sequence[int]) -> bytes:
    ids = [place * BLOCKS_PER_CHUNK + i for place in places for i in range(BLOCKS_PER_CHUNK)]
    return np.array(array("q", ids), "<u4").tobytes()
