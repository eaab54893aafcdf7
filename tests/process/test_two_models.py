"""Two models whose chunks differ in size by four, in one pool too small for both: right bytes, and nobody starves."""

import random
from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon
from tests.support.engine import BLOCKS_PER_CHUNK, CHUNK_TOKENS, Engine, blocks, tokens
from tests.support.poll import until

POOL, SLAB = 1 << 20, 128 << 10  # eight slabs, of 32 chunks of the one model or 8 of the other
PROMPT_BYTES = 32 << 10
#: Between heartbeats, so that a busy machine does not look like a silent gateway.
PATIENT_SECONDS = 2.0
NUM_PROMPTS = POOL // PROMPT_BYTES  # all prompts of one model would fill the pool


class Model:
    """One engine, whose prompts have so many chunks."""

    def __init__(self, daemon: Daemon, name: str, num_kv_heads: int, chunks: int) -> None:
        settings = {"num_kv_heads": num_kv_heads, "heartbeat_seconds": PATIENT_SECONDS}
        self.engine = Engine(daemon.run_dir, name=name, model=name, **settings)
        self.name = name
        self._chunks = chunks
        self._dice = random.Random(name)
        self._requests = 0

    def ask(self, prompt: int) -> float:
        """What an engine does for a request: look up, load what is there, store the whole; the part that was there."""
        engine, ids, computed = self.engine, tokens(self._chunks, prompt), blocks(self._chunks)
        self._requests += 1
        request = f"{self.name}-{self._requests}"
        engine.fill(computed, prompt)
        found = engine.scheduler.lookup(request, ids, timeout_seconds=10) // CHUNK_TOKENS
        if found:
            loaded = blocks(found, 32)
            engine.retrieve(request, ids[: found * CHUNK_TOKENS], loaded)
            assert engine.worker.wait_settled(20)
            failed = engine.worker.get_block_ids_with_load_errors()
            assert failed == set(), f"what is leased is there ({engine.worker.state}, {self.flaps()} flaps)"
            assert engine.read(loaded) == engine.read(computed[: found * BLOCKS_PER_CHUNK])
        engine.scheduler.end_session(request)
        if found < self._chunks:
            engine.store(request, ids, computed)
            assert engine.worker.wait_settled(20)
        return found / self._chunks

    def flaps(self) -> float:
        """How often the gateway was anything but healthy."""
        return self.engine.total("gateway_flaps")

    def ask_many(self, count: int) -> float:
        """So many requests for prompts at random; the part of them that was there."""
        return sum(self.ask(self._dice.randrange(NUM_PROMPTS)) for _ in range(count)) / count


@pytest.fixture
def small() -> Iterator[Daemon]:
    settings = {
        "KVGATE_POOL_SIZE": str(POOL),
        "KVGATE_SLAB_SIZE": str(SLAB),
        "KVGATE_HEARTBEAT_SECONDS": str(PATIENT_SECONDS),
        "KVGATE_LEASE_SECONDS": "60",
        "KVGATE_RESERVATION_SECONDS": "60",
    }
    with Daemon(settings) as daemon:
        yield daemon.start()


def shares(daemon: Daemon) -> dict[str, float]:
    """Of the pool, what each model's chunks take."""
    return {one.model: one.bytes / POOL for one in daemon.snapshot().namespaces}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", ["narrow", "wide"])
def test_whoever_was_there_first_shares_and_every_byte_stays_right(small: Daemon, first: str) -> None:
    """Alike in bytes asked for: in the end each holds a quarter of the pool at least, and a fifth of its chunks hit."""
    narrow, wide = Model(small, "narrow", num_kv_heads=2, chunks=8), Model(small, "wide", num_kv_heads=8, chunks=2)
    with narrow.engine.wait_healthy(), wide.engine.wait_healthy():
        alone = narrow if first == "narrow" else wide
        for prompt in range(NUM_PROMPTS):
            alone.ask(prompt)
        until(lambda: shares(small).get(first, 0) > 0.95, what="the first has it all")

        both = [(narrow.ask_many(2), wide.ask_many(2)) for _ in range(NUM_PROMPTS + NUM_PROMPTS // 2)]
        # By turns to the end: of two models the one that asks alone for a while takes from the other, as it should.
        rates = [sum(found) / len(found) for found in zip(*both[NUM_PROMPTS:], strict=True)]

        held = shares(small)
        assert min(held.values()) >= 0.25, held
        assert sum(held.values()) >= 1 - 2 * SLAB / POOL, f"each may be filling one slab: {held}"
        assert min(rates) >= 0.2, rates
        moved = [one.value for one in small.snapshot().counters if one.labels == ("slab",)]
        assert sum(moved) > 0, "slabs have changed hands"
        assert narrow.flaps() == wide.flaps() == 0
        assert narrow.engine.three() == wide.engine.three() == (0, 0, 0)
