"""What the eviction policies make of prompts, through the real core; and whether the figures can be believed."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from gateway.bench import Request, TraceError, optimum, read_trace, replay
from tests.support import prompts

#: Requests of a real hour, where somebody has put them beside the repository. See ``docs/benchmarks.md``.
CONVERSATIONS = Path(__file__).resolve().parents[3] / "shared" / "traces" / "conversation_trace.jsonl"


def requests_of(chunks) -> list[Request]:
    return [Request(float(i), one) for i, one in enumerate(chunks)]


def ratio(chunks, capacity: int) -> float:
    """Hits of the default policy for each hit of plain LRU."""
    requests = requests_of(chunks)
    return replay(requests, capacity, "lfu") / replay(requests, capacity, "lru")


# -- what is claimed of the default policy


@pytest.mark.parametrize(("one_off_share", "at_least"), [(0.6, 1.15), (0.3, 1.15)])
def test_among_prompts_that_come_once_conversations_hit_more_often_than_with_lru(one_off_share, at_least) -> None:
    assert ratio(prompts.chat(num_requests=800, live=60, one_off_share=one_off_share), 600) >= at_least


@pytest.mark.parametrize(
    ("chunks", "capacity"),
    [
        (prompts.chat(num_requests=800, live=60, one_off_share=0), 600),
        (prompts.loop(num_requests=2000, length=250), 260),
        (prompts.zipf(num_requests=3000, universe=2000), 200),
        (prompts.scan_beside_hot(num_requests=3000, hot=150, scan_share=0.5), 200),
        (prompts.moving(num_requests=3000, window=150), 150),
    ],
    ids=[
        "conversations alone",
        "a loop that fits",
        "popularity",
        "a scan beside what is hot",
        "popularity that moves on",
    ],
)
def test_where_lru_is_right_the_default_is_not_far_behind(chunks, capacity) -> None:
    assert ratio(chunks, capacity) >= 0.8


@pytest.mark.parametrize(("capacity", "at_least"), [(5_000, 0.150), (30_000, 0.320)])
@pytest.mark.skipif(not CONVERSATIONS.exists(), reason=f"there is no trace of conversations at {CONVERSATIONS}")
@pytest.mark.slow
def test_real_conversations_hit_as_often_as_promised(capacity, at_least) -> None:
    requests = read_trace(CONVERSATIONS)
    num_chunks = sum(len(request.chunks) for request in requests)
    assert replay(requests, capacity, "lfu") / num_chunks >= at_least


# -- whether the figures can be believed


def prefix_lru(requests: list[Request], capacity: int) -> int:
    """LRU with a list: what is asked for is not evicted meanwhile, and goes back to front to the hot end."""
    here: list[int] = []
    hits = 0
    for request in requests:
        found = next((i for i, one in enumerate(request.chunks) if one not in here), len(request.chunks))
        hits += found
        pinned = [one for one in request.chunks if one in here]
        for one in request.chunks[found:]:
            if one in here:
                continue
            if len(here) == capacity:
                victim = next((old for old in here if old not in pinned), None)
                if victim is None:
                    break
                here.remove(victim)
            here.append(one)
            pinned.append(one)
        for one in reversed([one for one in request.chunks if one in here]):
            here.remove(one)
            here.append(one)
    return hits


@pytest.mark.parametrize("capacity", [160, 400])
def test_lru_through_the_core_finds_what_a_plain_list_finds(capacity) -> None:
    requests = requests_of(prompts.chat(num_requests=300, live=30, one_off_share=0.3))
    assert replay(requests, capacity, "lru") == prefix_lru(requests, capacity)


def best_of_all(wanted: str, capacity: int) -> int:
    """The most hits that any choice of what to keep gives: all of them are tried."""
    states = {frozenset(): 0}
    for chunk in wanted:
        after: dict[frozenset[str], int] = {}
        for here, hits in states.items():
            now = hits + (chunk in here)
            every = here | {chunk}
            for size in range(min(capacity, len(every)) + 1):
                for kept in map(frozenset, combinations(sorted(every), size)):
                    after[kept] = max(after.get(kept, 0), now)
        states = after
    return max(states.values())


@pytest.mark.parametrize("wanted", ["abcabcabc", "aabbccabc", "abcdabedcba", "abacadabac"])
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_optimum_is_the_best_of_all_choices(wanted, capacity) -> None:
    assert optimum(requests_of(zip(wanted, strict=True)), capacity) == best_of_all(wanted, capacity)


def test_a_pool_for_everything_finds_all_that_came_before_with_every_policy() -> None:
    requests = requests_of([(1, 2, 3), (1, 2, 4), (1, 2, 3), (5,), (5, 6)])
    assert [replay(requests, 100, policy) for policy in ("lfu", "lru")] == [6, 6]
    assert optimum(requests, 100) == 6


# -- traces


def test_a_trace_is_read_in_its_units(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1500, "hash_ids": [1, 2]}\n\n{"hash_ids": ["a"]}\n')
    assert read_trace(path) == [Request(1.5, (1, 2)), Request(0.003, ("a",))]


@pytest.mark.parametrize(
    "line", ["{", "[1]", "{}", '{"hash_ids": 7}', '{"hash_ids": "ab"}', '{"hash_ids": [1, 1]}', '{"hash_ids": [null]}',
             '{"hash_ids": [1], "timestamp": "now"}']
)  # fmt: skip
def test_a_line_that_is_no_request_is_named(tmp_path, line) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"hash_ids": [1]}) + "\n" + line + "\n")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(path)


def test_a_trace_without_chunks_is_refused(tmp_path) -> None:
    (tmp_path / "empty").write_text('{"hash_ids": []}\n')
    with pytest.raises(TraceError, match="no chunks"):
        read_trace(tmp_path / "empty")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent")
