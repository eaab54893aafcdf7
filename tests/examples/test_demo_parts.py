"""The parts of the demo on which its verdict rests: what is asked, what fits, and that a wrong byte is seen."""

import itertools
import json
from pathlib import Path

import pytest

from examples.demo.conversations import conversations, trace
from examples.demo.paged import PagedCache
from examples.demo.sizes import BLOCKS_PER_CHUNK, Machine, TooSmallError, fit

GIB = 1 << 30
KEYS = [bytes([i]) * 32 for i in range(3)]


def test_chats_are_the_same_in_every_process_and_share_prefixes() -> None:
    first = [request.tokens.tolist() for request in itertools.islice(conversations(2048), 60)]
    again = [request.tokens.tolist() for request in itertools.islice(conversations(2048), 60)]

    assert first == again
    assert max(map(len, first)) <= 2048
    growing = sum(any(later[: len(prompt)] == prompt for later in first[i + 1 :]) for i, prompt in enumerate(first))
    assert growing > 10
    assert len({tuple(prompt[:300]) for prompt in first}) <= 5


def test_a_trace_keeps_its_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(700, [0, 1]), (1200, [0, 1, 2]), (100, [7])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": ids}) + "\n"
            for n, ids in rows
        )
    )

    found = [request.tokens.tolist() for request in itertools.islice(trace(path, 1024), 4)]

    assert [len(tokens) for tokens in found] == [700, 1024, 100, 700]
    assert found[1][:700] == found[0] == found[3]
    assert found[2][0] not in found[1]


@pytest.mark.parametrize("text", ["", "nothing\n", '{"input_length": 5}\n', '{"input_length": 5, "hash_ids": 3}\n'])
def test_a_bad_trace_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)

    with pytest.raises(ValueError, match=r"trace\.jsonl"):
        next(trace(path, 1024))


@pytest.mark.parametrize(
    ("machine", "layers", "pool_chunks"),
    [
        (Machine(32 * GIB, 16 * GIB), 16, 256),
        (Machine(8 * GIB, 4 * GIB), 8, 256),
        (Machine(16 * GIB, GIB), 2, 256),
        (Machine(16 * GIB, GIB // 6), 1, 128),
    ],
)
def test_sizes_fit_the_machine(machine: Machine, layers: int, pool_chunks: int) -> None:
    sizes = fit(machine)

    assert (sizes.layers, sizes.pool_chunks) == (layers, pool_chunks)
    assert sizes.pool_bytes < machine.pool_bytes


def test_a_machine_can_be_too_small() -> None:
    with pytest.raises(TooSmallError, match="MiB"):
        fit(Machine(GIB, 16 * GIB))


def test_what_was_computed_is_right_and_any_other_byte_is_seen() -> None:
    cache = PagedCache(layers=2, num_blocks=4 * BLOCKS_PER_CHUNK)
    blocks = cache.allocate(3 * BLOCKS_PER_CHUNK)
    cache.compute(KEYS, blocks)
    assert cache.wrong_bytes(KEYS, blocks) == 0

    words = cache.tensors["layer.1"].view(-1)
    words[:] = words.flip(0)
    assert cache.wrong_bytes(KEYS, blocks) > 0


def test_blocks_chunks_and_layers_are_told_apart() -> None:
    cache = PagedCache(layers=2, num_blocks=2 * BLOCKS_PER_CHUNK)
    blocks = cache.allocate(2 * BLOCKS_PER_CHUNK)
    cache.compute(KEYS[:2], blocks)
    one_chunk = cache.tensors["layer.0"].nbytes // 2

    swapped_blocks = [blocks[1], blocks[0], *blocks[2:]]
    assert cache.wrong_bytes(KEYS[:2], swapped_blocks) > 0
    assert cache.wrong_bytes([KEYS[1], KEYS[0]], blocks) > one_chunk
    first, second = cache.tensors.values()
    first.copy_(second)
    assert cache.wrong_bytes(KEYS[:2], blocks) > one_chunk


def test_blocks_come_back_oldest_first() -> None:
    cache = PagedCache(layers=1, num_blocks=8)
    first, second = cache.allocate(4), cache.allocate(4)
    cache.free(second)
    cache.free(first)

    assert cache.allocate(8) == [*second, *first]
