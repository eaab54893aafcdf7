"""Prompts of a chunk, of a hundred, of a thousand: each byte in its place, whatever the size."""

import pytest

from tests.support.daemon import Daemon
from tests.support.engine import BLOCKS_PER_CHUNK, Engine, blocks, tokens

LONGEST = 1000


@pytest.fixture(scope="module")
def large():
    with Daemon({"KVGATE_VERIFY": ""}) as daemon:  # 1,000 chunks of 4 KiB, and as many again
        yield daemon.start()


@pytest.mark.parametrize("chunks", [1, 100, 127, 128, 129, 300, LONGEST])
def test_every_byte_of_a_prompt_comes_back(large: Daemon, chunks: int) -> None:
    with Engine(large.run_dir, num_blocks=2 * LONGEST * BLOCKS_PER_CHUNK, heartbeat_seconds=1).wait_healthy() as engine:
        prompt, computed = tokens(chunks, seed=chunks), blocks(chunks)
        engine.store_and_wait("stored", prompt, computed, seed=chunks)

        loaded = blocks(chunks, LONGEST * BLOCKS_PER_CHUNK)[::-1]
        assert engine.load("loaded", prompt, loaded) == set()

        assert engine.read(loaded) == engine.read(computed)
        assert engine.three() == (0, 0, 0)
