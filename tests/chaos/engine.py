"""An engine that serves prompts until its standard input ends, and looks at every byte it gets back.

``python -m tests.chaos.engine RUN_DIR NAME SEED [MANNER…]``. It behaves as badly as an engine may: it reuses blocks of
stores that still run (after revoking them), preempts, gives requests up between lookup and load and in the middle of a
load, ends sessions before their last store, and stores the same again. Its manners:

handle: the gateway copies for it.
careless: it reuses blocks without a word: that must be found.
hoarding: it keeps each event and ends no session: that must be found too.

A chunk's bytes follow from its key, so that any engine can tell whether a block holds what it should.
"""

import random
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from adapter import IpcEvent, LoadStoreOp
from gateway.device import HostEvent
from tests.chaos.lines import Told
from tests.support.engine import BLOCKS_PER_CHUNK, CHUNK_TOKENS, Engine, tokens
from tests.support.events import FakeEvent

NUM_BLOCKS = 128
NUM_HEADS = 32  # 64 KiB a chunk: a pool of 8 MiB holds 128 of them
NUM_PROMPTS = 60
MAX_CHUNKS = 8
THINK_SECONDS = 0.02  # between two prompts: an engine without a gateway does not take the machine from the others
LOAD_SECONDS = 60.0  # a load is settled by then, however the gateway fares


class ChaoticEngine:
    """One engine and its free list."""

    def __init__(self, run_dir: Path, name: str, seed: int, manners: Sequence[str] = ()) -> None:
        self._run_dir = run_dir
        self._is_careless = "careless" in manners
        self._by_handle = "handle" in manners
        self._hoard: list[IpcEvent] | None = [] if "hoarding" in manners else None
        self._random = random.Random(seed)
        self._engine = Engine(
            run_dir,
            name=name,
            num_blocks=NUM_BLOCKS,
            num_kv_heads=NUM_HEADS,
            heartbeat_seconds=1.0,
            transfer="handle" if self._by_handle else "pool",
        )
        self._words = [cache.view(torch.int64) for cache in self._engine.caches.values()]
        shape = (2, BLOCKS_PER_CHUNK, *self._words[0].shape[2:])
        self._pattern = torch.randint(-(2**62), 2**62, shape, generator=torch.Generator().manual_seed(1))
        self._free = deque(range(NUM_BLOCKS))
        self._unfired: deque[Callable[[], None]] = deque()
        self.told = Told()

    def serve(self, request: str) -> None:
        """One prompt: look up, load what is there, compute and store the rest."""
        while len(self._unfired) > 2:
            self._unfired.popleft()()
        number = int(NUM_PROMPTS * self._random.random() ** 2)  # some are asked for often
        if self._random.random() < 0.05:
            number = self._random.randrange(NUM_PROMPTS, 1 << 31)  # and some but once
        prompt = tokens(MAX_CHUNKS, seed=number)
        prompt = prompt[: CHUNK_TOKENS * self._random.randint(1, MAX_CHUNKS)]
        keys = LoadStoreOp.from_tokens(prompt, _blocks(range(len(prompt) // CHUNK_TOKENS)), self._engine.identity).keys
        # Often just those that the last prompts have freed, whose stores have hardly begun.
        take = self._free.pop if self._random.random() < 0.5 else self._free.popleft
        taken = [take() for _ in range(len(keys) * BLOCKS_PER_CHUNK)]
        if not self._is_careless:
            self._engine.worker.revoke_blocks(taken)
        for words in self._words:
            words[:, taken] = 0

        found = self._engine.scheduler.lookup(request, prompt, timeout_seconds=0.2) // CHUNK_TOKENS
        is_given_up = self._random.random() < 0.05
        loaded = self._load(request, keys, taken, found) if found and not is_given_up else 0
        for place in range(loaded, len(keys)):
            self._compute(keys[place], _of(taken, place))
        if loaded < len(keys) and not is_given_up:
            self._store(request, keys, taken, loaded)
        if self._hoard is None:
            self._engine.scheduler.end_session(request)
        if self._random.random() < 0.1:
            self._engine.worker.handle_preemptions([request], timeout_seconds=1.0)
        self._free.extend(taken)
        self.told.requests += 1
        self.told.hit_chunks += found

    def tell(self, event: str = "runs") -> None:
        """Say how it stands."""
        snapshot = self._engine.worker.snapshot()
        self.told.event, self.told.state = event, str(snapshot.state)
        self.told.pending_stores = snapshot.pending_stores
        self.told.pending_retrieves = snapshot.pending_retrieves
        self.told.retained_events = snapshot.retained_events
        self.told.tables = {
            f"{half} {table}": entries
            for half, of_half in (("worker", snapshot), ("scheduler", self._engine.scheduler.snapshot()))
            for table, entries in of_half.tables.items()
        }
        self.told.stored = int(self._engine.total("operations", kind="store", outcome="stored"))
        sys.stdout.buffer.write(msgspec.json.encode(self.told) + b"\n")
        sys.stdout.buffer.flush()

    def come_to_rest(self) -> None:
        """Let everything settle."""
        while self._unfired:
            self._unfired.popleft()()
        self._engine.worker.wait_settled(LOAD_SECONDS)
        self._engine.worker.get_finished()

    def close(self) -> None:
        """Leave the gateway."""
        self._engine.close()

    def _load(self, request: str, keys: Sequence[bytes], taken: Sequence[int], found: int) -> int:
        """Chunks loaded before the first that was not; all that is said to be there is looked at."""
        blocks = taken[: found * BLOCKS_PER_CHUNK]
        self._engine.worker.submit_retrieve_request(request, LoadStoreOp(keys[:found], blocks), self._event(fired=True))
        if self._random.random() < 0.05:
            self._engine.worker.handle_preemptions([request], timeout_seconds=1.0)
        deadline = time.monotonic() + LOAD_SECONDS
        while request not in self._engine.worker.get_finished()[1]:
            if time.monotonic() > deadline:
                self.told.late_loads += 1
                return 0
            time.sleep(0.001)
        missing = self._engine.worker.get_block_ids_with_load_errors()
        good = [place for place in range(found) if missing.isdisjoint(_of(taken, place))]
        self.told.wrong_chunks += sum(not self._is_right(keys[place], _of(taken, place)) for place in good)
        self.told.loaded_chunks += len(good)
        return next((place for place in range(found) if place not in good), found)

    def _store(self, request: str, keys: Sequence[bytes], taken: Sequence[int], first: int) -> None:
        """In one or two operations; their event has fired, or will with a later request."""
        start, event = first * CHUNK_TOKENS, self._event(fired=self._random.random() < 0.7)
        op = LoadStoreOp(keys[first:], taken[first * BLOCKS_PER_CHUNK :], start=start)
        self._engine.worker.submit_store_request(request, op, event)
        if self._random.random() < 0.2:
            self._engine.worker.submit_store_request(request, op, event)

    def _event(self, *, fired: bool) -> IpcEvent:
        """A new event; one that has not fired does so some prompts later."""
        event = HostEvent(self._run_dir) if self._by_handle else FakeEvent()
        fire = event.record if isinstance(event, HostEvent) else event.fire
        if fired:
            fire()
        else:
            self._unfired.append(fire)
        if self._hoard is not None:
            self._hoard.append(event)
        return event

    def _compute(self, key: bytes, blocks: Sequence[int]) -> None:
        for layer, words in enumerate(self._words):
            words[:, blocks] = self._expected(key, layer)

    def _is_right(self, key: bytes, blocks: Sequence[int]) -> bool:
        return all(torch.equal(words[:, blocks], self._expected(key, layer)) for layer, words in enumerate(self._words))

    def _expected(self, key: bytes, layer: int) -> torch.Tensor:
        return torch.bitwise_xor(self._pattern, int.from_bytes(key[:7], "little") + layer)


def _of(taken: Sequence[int], place: int) -> list[int]:
    return list(taken[place * BLOCKS_PER_CHUNK : (place + 1) * BLOCKS_PER_CHUNK])


def _blocks(places: range) -> list[int]:
    return list(range(places.start * BLOCKS_PER_CHUNK, places.stop * BLOCKS_PER_CHUNK))


def main() -> None:
    run_dir, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    engine = ChaoticEngine(run_dir, name, seed, sys.argv[4:])
    tell_at, number = 0.0, 0
    while not select.select([sys.stdin], [], [], THINK_SECONDS)[0]:
        engine.serve(f"{name}-{seed}-{number}")
        number += 1
        if time.monotonic() >= tell_at:
            engine.tell()
            tell_at = time.monotonic() + 0.2
    engine.come_to_rest()
    engine.tell("idle")
    sys.stdin.read()  # until the conductor has looked
    engine.close()


if __name__ == "__main__":
    main()
