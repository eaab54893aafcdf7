"""Several ranks, overlapping steps, both policies: through vLLM's real scheduler and aggregator."""

import threading
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from gateway.device.copy import ChunkCopier
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import OperationKind, Reason
from tests.engine.conftest import at_rest
from tests.engine.engine import BLOCK_TOKENS, CHUNK_TOKENS, prompt
from tests.engine.ranks import Ranks, cache_of, config_of
from tests.support.daemon import Daemon
from tests.support.poll import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.engine import FinishReason
    from vllm.v1.request import RequestStatus

TOKENS = 1024
BLOCKS = TOKENS // BLOCK_TOKENS


class Held:
    """A copy that waits until it may go on, and fails loads from a chunk on where that is set."""

    def __init__(self, *, fails_from: int = -1, waits: bool = False) -> None:
        self._fails_from = fails_from
        self.may_go = threading.Event()
        if not waits:
            self.may_go.set()

    def __call__(self, unit: Unit, mapping: PoolMapping, copier: ChunkCopier) -> Reason:
        assert self.may_go.wait(60)
        reason = copy_unit(unit, mapping, copier)
        fails = unit.kind is OperationKind.RETRIEVE and 0 <= self._fails_from <= unit.chunk
        return Reason.CHANGED if fails else reason


def run_until(ranks: Ranks, holds: Callable[[], object], what: str) -> None:
    until(lambda: (ranks.step(), holds())[1], 30, what)


def is_running(ranks: Ranks, request_id: str) -> bool:
    return request_id in {request.request_id for request in ranks.scheduler.running}


def bytes_when_running(ranks: Ranks, request_id: str) -> list[torch.Tensor]:
    """What each rank has in the blocks of the prompt when the request is computed."""
    run_until(ranks, lambda: is_running(ranks, request_id), f"{request_id} to run")
    blocks = ranks.blocks_of(request_id)[:BLOCKS]
    return [cache[blocks].clone() for cache in ranks.caches]


def store(ranks: Ranks, tokens: list[int], request_id: str = "store") -> list[torch.Tensor]:
    """Run a request to its end. Returns what was stored, for each rank."""
    ranks.add(request_id, tokens)
    wanted = bytes_when_running(ranks, request_id)
    run_until(ranks, lambda: request_id in ranks.finished, f"{request_id} to finish")
    ranks.settle()
    return wanted


def found(ranks: Ranks, tokens: list[int], **options: Any) -> int:
    """How much of a prompt is loaded for a request, which runs to its end."""
    before = loaded_tokens(ranks)
    ranks.add("found", tokens, **options)
    run_until(ranks, lambda: ranks.finished.pop("found", None), "the end")
    ranks.settle()
    return loaded_tokens(ranks) - before


def loaded_tokens(ranks: Ranks) -> int:
    values = [w.registry.get_sample_value("kvgate_adapter_loaded_tokens_total") for w in ranks.workers]
    return int(sum(value or 0.0 for value in values)) // len(values)


def total(ranks: Ranks, kind: str, outcome: str) -> float:
    labels = {"kind": kind, "outcome": outcome}
    values = [w.registry.get_sample_value("kvgate_adapter_operations_total", labels) for w in ranks.workers]
    return sum(value or 0.0 for value in values)


def nothing_is_left(ranks: Ranks, free_blocks: int) -> None:
    assert ranks.free_blocks == free_blocks
    assert not ranks.scheduler.requests
    assert not ranks.scheduler.has_finished_requests() or ranks.step()


def test_each_rank_loads_its_own_part(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 100)
    with Ranks(model, daemon.run_dir) as one, Ranks(model, daemon.run_dir) as other:
        wanted = store(one, asked)
        assert not torch.equal(wanted[0], wanted[1])
        free = other.free_blocks
        other.add("r", asked)

        brought = bytes_when_running(other, "r")

        assert all(torch.equal(a, b) for a, b in zip(brought, wanted, strict=True))
        run_until(other, lambda: "r" in other.finished, "the end")
        nothing_is_left(other, free)
    at_rest(daemon)


@pytest.mark.parametrize(
    ("tp", "pp", "replicas"), [(2, 2, 1), (4, 1, 2), (2, 2, 2)], ids=["tp-pp", "replicas", "replicas-pp"]
)
def test_each_part_is_stored_once_and_loaded_by_all_that_hold_it(
    model: Path, daemon: Daemon, tp: int, pp: int, replicas: int
) -> None:
    asked = prompt(TOKENS, 200 + 10 * tp + replicas)
    shape = {"tp": tp, "pp": pp, "replicas": replicas}
    with Ranks(model, daemon.run_dir, **shape) as one, Ranks(model, daemon.run_dir, **shape) as other:
        wanted = store(one, asked)
        written = [w.registry.get_sample_value("kvgate_adapter_bytes_total", {"kind": "store"}) for w in one.workers]
        assert written == [wanted[0].nbytes if rank % replicas == 0 else 0 for rank in range(tp * pp)]
        free = other.free_blocks
        other.add("r", asked)

        brought = bytes_when_running(other, "r")

        assert all(torch.equal(a, b) for a, b in zip(brought, wanted, strict=True))
        assert len({part.sum().item() for part in brought}) == tp * pp // replicas, "unlike parts are unlike"
        run_until(other, lambda: "r" in other.finished, "the end")
        nothing_is_left(other, free)
    at_rest(daemon)


@pytest.mark.parametrize("other_shape", [{"layout": "LBNHC"}, {"tp": 1}], ids=["layout", "ranks"])
def test_another_layout_or_another_split_of_the_same_model_is_a_miss(
    model: Path, daemon: Daemon, other_shape: dict
) -> None:
    asked = prompt(TOKENS, 190)
    with (
        Ranks(model, daemon.run_dir) as one,
        Ranks(model, daemon.run_dir, **other_shape) as unlike,
        Ranks(model, daemon.run_dir) as like,
    ):
        store(one, asked)

        assert found(unlike, asked) == 0
        assert found(like, asked) == TOKENS


def image(identifier: str, offset: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, 100))


@pytest.mark.parametrize(
    ("items", "chunks"),
    [
        ([image("cat", 300), image("dog", 700)], 4),
        ([image("cat", 300), image("cow", 700)], 2),
        ([image("cat", 300)], 2),
        ([image("cat", 301), image("dog", 700)], 1),
        ([], 1),
    ],
    ids=["the same", "another image", "none", "elsewhere", "text"],
)
def test_an_image_is_a_part_of_what_is_asked(model: Path, daemon: Daemon, items: list, chunks: int) -> None:
    asked = prompt(TOKENS, 195)  # placeholders are tokens like others, and the same for every image
    with Ranks(model, daemon.run_dir, tp=1) as one, Ranks(model, daemon.run_dir, tp=1) as other:
        one.add("store", asked, mm_features=[image("cat", 300), image("dog", 700)])
        run_until(one, lambda: "store" in one.finished, "the end")
        one.settle()

        assert found(other, asked, mm_features=items) == chunks * CHUNK_TOKENS


def test_an_abort_between_lookup_and_load_gives_the_promise_back(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 165)
    with Ranks(model, daemon.run_dir, tp=1) as one, Ranks(model, daemon.run_dir, tp=1, num_blocks=BLOCKS + 8) as other:
        store(one, asked)
        free = other.free_blocks
        other.add("hog", prompt(512, 166), max_tokens=1000)  # too little is left for the other
        run_until(other, lambda: is_running(other, "hog"), "hog to run")
        other.add("r", asked)
        run_until(other, lambda: other.half._tracked["r"].stored_chunks == TOKENS // CHUNK_TOKENS, "the answer")
        assert other.scheduler.requests["r"].status is RequestStatus.WAITING

        other.scheduler.finish_requests(["r", "hog"], RequestStatus.FINISHED_ABORTED)

        run_until(other, lambda: not other.scheduler.requests, "its blocks to be free")
        other.settle()
        assert not other.half._tracked
        nothing_is_left(other, free)
        at_rest(daemon)


@pytest.mark.parametrize("chunk", [0, 2])
def test_where_one_rank_fails_the_request_is_computed_from_there(model: Path, daemon: Daemon, chunk: int) -> None:
    asked = prompt(TOKENS, 110 + chunk)
    with Ranks(model, daemon.run_dir) as one, Ranks(model, daemon.run_dir) as other:
        store(one, asked)
        free = other.free_blocks
        other.workers[1]._memory._copy = Held(fails_from=chunk)
        other.add("r", asked)

        flight = until(lambda: (f := other.step()).output.scheduled_new_reqs and f, 30, "it to be computed")

        assert flight.output.scheduled_new_reqs[0].num_computed_tokens == chunk * CHUNK_TOKENS
        run_until(other, lambda: "r" in other.finished, "the end")
        assert other.finished["r"].finish_reason is FinishReason.LENGTH
        loads = sum(total(other, "retrieve", outcome) for outcome in ("loaded", "partial", "failed"))
        assert loads == 2, "each rank loads once; the failed load is not tried again and again"
        nothing_is_left(other, free)
    at_rest(daemon)


def test_with_the_policy_fail_a_failed_load_ends_its_request(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 120)
    allowed = {"kvgate.allow_fail": True}
    with Ranks(model, daemon.run_dir) as one, Ranks(model, daemon.run_dir, policy="fail", extra=allowed) as other:
        store(one, asked)
        free = other.free_blocks
        other.workers[0]._memory._copy = Held(fails_from=1)
        other.add("r", asked)

        run_until(other, lambda: "r" in other.finished, "the end")

        assert other.finished["r"].finish_reason is FinishReason.ERROR
        run_until(other, lambda: not other.scheduler.requests, "its blocks to be free")
        nothing_is_left(other, free)
    at_rest(daemon)


def test_a_request_waits_for_its_slowest_rank(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 130)
    with Ranks(model, daemon.run_dir) as one, Ranks(model, daemon.run_dir) as other:
        wanted = store(one, asked)
        held = other.workers[1]._memory._copy = Held(waits=True)
        other.add("r", asked)
        run_until(other, lambda: total(other, "retrieve", "loaded") == 1, "one rank to be ready")
        for _ in range(20):
            other.step()
        assert other.scheduler.requests["r"].status is RequestStatus.WAITING_FOR_REMOTE_KVS

        held.may_go.set()

        assert all(torch.equal(a, b) for a, b in zip(bytes_when_running(other, "r"), wanted, strict=True))


@pytest.mark.parametrize("outcome", ["loaded", "failed"])
def test_an_abort_while_a_rank_loads_frees_its_blocks_when_all_have_ended(
    model: Path, daemon: Daemon, outcome: str
) -> None:
    asked = prompt(TOKENS, 140 + len(outcome))
    with Ranks(model, daemon.run_dir) as one, Ranks(model, daemon.run_dir) as other:
        store(one, asked)
        free = other.free_blocks
        held = other.workers[1]._memory._copy = Held(waits=True, fails_from=0 if outcome == "failed" else -1)
        other.add("r", asked)
        run_until(other, lambda: total(other, "retrieve", "loaded") == 1, "one rank to be ready")

        other.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)

        for _ in range(20):
            other.step()
        assert other.free_blocks == free - BLOCKS, "they are being written"
        held.may_go.set()
        run_until(other, lambda: not other.scheduler.requests, "its blocks to be free")
        nothing_is_left(other, free)
    at_rest(daemon)


def test_steps_that_overlap(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 150)
    with Ranks(model, daemon.run_dir, is_async=True) as one, Ranks(model, daemon.run_dir, is_async=True) as other:
        free = one.free_blocks
        one.add("r", asked, max_tokens=6)
        flights = deque([one.schedule()])
        while flights:
            if one.scheduler.has_unfinished_requests():
                flights.append(one.schedule())
            one.land(flights.popleft())
        assert one.finished["r"].finish_reason is FinishReason.LENGTH
        run_until(one, lambda: not one.scheduler.requests, "its blocks to be free")
        nothing_is_left(one, free)
        one.settle()
        other.add("r", asked)
        flight = until(lambda: (f := other.step()).output.scheduled_new_reqs and f, 30, "it to be computed")
        assert flight.output.scheduled_new_reqs[0].num_computed_tokens == TOKENS - 1, "all but the last is loaded"


def test_running_requests_that_are_reset_begin_anew(model: Path, daemon: Daemon) -> None:
    asked = prompt(TOKENS, 160)
    with Ranks(model, daemon.run_dir) as ranks:
        free = ranks.free_blocks
        ranks.add("r", asked, max_tokens=20)
        run_until(ranks, lambda: is_running(ranks, "r"), "r to run")
        ranks.settle()

        assert ranks.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

        flight = until(
            lambda: (f := ranks.step()).output.num_scheduled_tokens.get("r", 0) > 1 and f, 30, "it to be computed again"
        )
        assert flight.output.num_scheduled_tokens["r"] >= TOKENS, "nothing of before was found"
        run_until(ranks, lambda: "r" in ranks.finished, "the end")
        nothing_is_left(ranks, free)
    at_rest(daemon)


def test_blocks_that_are_used_again_before_they_are_copied_are_given_up(model: Path, daemon: Daemon) -> None:
    one, other = prompt(TOKENS, 170), prompt(TOKENS, 171)
    with Ranks(model, daemon.run_dir, tp=1, num_blocks=BLOCKS + 4) as ranks:
        held = ranks.workers[0]._memory._copy = Held(waits=True)
        ranks.add("one", one, max_tokens=1)
        run_until(ranks, lambda: "one" in ranks.finished, "the end of one")
        ranks.add("other", other, max_tokens=1)
        run_until(ranks, lambda: "other" in ranks.finished, "the end of the other, in the same blocks")
        held.may_go.set()
        ranks.settle()

        assert total(ranks, "store", "revoked") == 1
        assert total(ranks, "store", "stored") == 1
        assert ranks.scheduler.reset_prefix_cache()
        ranks.add("again", one, max_tokens=1)
        flight = until(lambda: (f := ranks.step()).output.scheduled_new_reqs and f, 30, "it to be computed")
        assert flight.output.scheduled_new_reqs[0].num_computed_tokens == 0
    at_rest(daemon)


def test_a_whole_prompt_that_is_found_leaves_one_token_to_compute(model: Path, daemon: Daemon) -> None:
    asked = prompt(CHUNK_TOKENS, 180)
    with Ranks(model, daemon.run_dir, tp=1) as one, Ranks(model, daemon.run_dir, tp=1) as other:
        one.add("store", asked)
        run_until(one, lambda: "store" in one.finished, "the end")
        one.settle()
        other.add("r", asked)

        flight = until(lambda: (f := other.step()).output.scheduled_new_reqs and f, 30, "it to be computed")

        assert flight.output.num_scheduled_tokens == {"r": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "fail"}, "kv_load_failure_policy is fail"),
        ({"extra": {"kvgate.rundir": "x"}}, "kvgate.rundir is not a setting"),
        ({"extra": {"kvgate.chunk_tokens": 100}}, "multiple of vLLM's block size"),
    ],
    ids=["policy", "setting", "chunk"],
)
def test_vllm_does_not_start_with_what_is_refused(model: Path, tmp_path: Path, options: dict, message: str) -> None:
    config = config_of(model, tmp_path, **options)

    with pytest.raises(ValueError, match=message):
        KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache_of(16))
