"""What the scheduler half of the vLLM connector plans: on a real adapter, with a gateway that answers as it is told."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter import AdapterConfig, CacheIdentity, Geometry, SchedulerAdapter
from adapter.geometry import LayerGeometry
from adapter.vllm import scheduler_half
from adapter.vllm.plans import Load, StepPlan, StepReport, Store
from adapter.vllm.scheduler_half import SchedulerHalf
from gateway.wire.codes import ErrorCode
from gateway.wire.messages import EndSession, Error, Found, Lookup, Release, Reply
from tests.adapter.scripted import ScriptedGateway
from tests.adapter.vllm.objects import BLOCK_TOKENS, Step, item, lora, report, request, table
from tests.support.poll import until

CHUNK = 64
BLOCKS = CHUNK // BLOCK_TOKENS
IDENTITY = CacheIdentity("tiny", block_tokens=BLOCK_TOKENS, chunk_tokens=CHUNK)
GEOMETRY = Geometry("LBHNC", "bfloat16", 64, (LayerGeometry(1, 512),))
PROMPT = list(range(5 * CHUNK + 10))
IDLE = Step().output


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A scheduler half, the gateway it asks, and the time it goes by."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self.clock = Clock()
        config = AdapterConfig(heartbeat_seconds=0.1, lookup_timeout_seconds=5.0)
        self.adapter = SchedulerAdapter(gateway.run_dir, IDENTITY, "g", config)
        self.half = SchedulerHalf(self.adapter, self.clock)
        self.half.set_geometries([GEOMETRY])
        assert self.adapter.wait_healthy(20)

    def find(self, chunks: int) -> None:
        """Lookups find so many chunks from now on."""

        def answer(asked: Lookup) -> Reply:
            found: Reply = self.gateway.answer(asked)
            assert isinstance(found, Found)
            return Found(number=0, boot=b"", chunks=chunks, lease_deadline=found.lease_deadline)

        self.gateway.answers[Lookup] = answer

    def matched(self, asked, local: int = 0) -> int:
        """What vLLM is told when it asks until it is."""
        answer = until(lambda: [found] if (found := self.half.matched(asked, local)) is not None else [])
        return answer[0]

    def plan(self, step: Step) -> StepPlan:
        return self.half.plan(step.output())


@pytest.fixture
def bench(scripted: ScriptedGateway) -> Iterator[Bench]:
    made = Bench(scripted)
    yield made
    made.adapter.close()


def test_a_request_that_is_asked_again_and_again_is_looked_up_once(bench: Bench) -> None:
    bench.gateway.silence(Lookup)
    asked = request(tokens=PROMPT)

    assert {bench.half.matched(asked, 0) for _ in range(50)} == {None}
    assert len(until(lambda: bench.gateway.of(Lookup))) == 1


@pytest.mark.parametrize("kind", ["salt", "adapter", "image"])
def test_whose_cache_it_is_is_in_what_is_asked_and_in_what_is_stored(bench: Bench, tmp_path: Path, kind: str) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    own = {
        "salt": {"cache_salt": "tenant"},
        "adapter": {"lora": lora(str(tmp_path))},
        "image": {"items": (item("cat", 3, 5),)},
    }[kind]
    bench.find(0)
    blocks = list(range(5 * BLOCKS + 1))
    for asked in (request("plain", PROMPT), request("own", PROMPT, **own)):
        assert bench.matched(asked) == 0
        bench.half.allocated(asked, table(blocks), 0)
    (plain,) = bench.plan(Step().new("plain", blocks, len(PROMPT))).stores
    (others,) = bench.plan(Step().new("own", blocks, len(PROMPT))).stores

    assert set(plain.keys).isdisjoint(others.keys), "the first chunk differs, and each is chained to those before"
    assert [lookup.keys for lookup in bench.gateway.of(Lookup)] == [plain.keys, others.keys]


def test_what_a_step_waits_for_lookups_has_a_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(request_id: str, seconds: float) -> object:
        waits.append(seconds)
        bench.clock.now += seconds
        return bench.adapter.check_lookup_result(request_id)

    bench.gateway.silence(Lookup)
    monkeypatch.setattr(bench.adapter, "wait_lookup_result", wait)
    for i in range(10):
        bench.half.matched(request(f"r{i}", PROMPT), 0)
    assert waits == [scheduler_half.LOOKUP_WAIT_SECONDS], "the first waits, the others have none left"

    bench.half.plan(IDLE())
    bench.half.matched(request("r0", PROMPT), 0)

    assert len(waits) == 2, "each step has its own"


def test_what_is_found_beyond_vllms_own_is_loaded(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    blocks = list(range(10, 10 + 4 * BLOCKS))

    assert bench.matched(asked, 0) == 4 * CHUNK
    bench.half.allocated(asked, table(blocks), 4 * CHUNK)
    plan = bench.plan(Step())

    keys = bench.adapter.chunk_keys("r", PROMPT)
    assert plan.loads == (Load("r", tuple(keys[:4]), tuple(blocks), start=0),)
    assert plan.fresh_blocks == tuple(blocks), "what was in them is overwritten"
    assert plan.is_idle
    assert not plan.stores


def test_a_load_that_begins_inside_a_chunk_skips_what_vllm_holds(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    local = CHUNK + 2 * BLOCK_TOKENS
    blocks = list(range(10, 10 + 4 * BLOCKS))

    assert bench.matched(asked, local) == 4 * CHUNK - local
    bench.half.allocated(asked, table(blocks), 4 * CHUNK - local)
    (load,) = bench.plan(Step()).loads

    assert (load.start, load.skip_tokens) == (CHUNK, 2 * BLOCK_TOKENS)
    assert load.block_ids == tuple(blocks[BLOCKS:])
    assert load.keys == tuple(bench.adapter.chunk_keys("r", PROMPT)[1:4])
    until(lambda: [(r.start, r.end) for r in bench.gateway.of(Release)] == [(0, 1)])


def test_blocks_that_vllm_held_are_not_fresh(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    bench.matched(asked, CHUNK + 2 * BLOCK_TOKENS)
    bench.half.allocated(asked, table(list(range(10, 26))), 3 * CHUNK - 2 * BLOCK_TOKENS)

    assert bench.plan(Step()).fresh_blocks == tuple(range(16, 26))


@pytest.mark.parametrize(("local", "gained"), [(4 * CHUNK - BLOCK_TOKENS, 0), (4 * CHUNK, 0), (5 * CHUNK, 0)])
def test_what_gains_a_block_or_less_is_computed(bench: Bench, local: int, gained: int) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)

    assert bench.matched(asked, local) == gained
    bench.half.allocated(asked, table(list(range(24))), 0)

    assert not bench.plan(Step()).loads
    until(lambda: bench.gateway.of(EndSession))


def test_the_lease_lasts_until_the_load_is_over(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(16))), 4 * CHUNK)
    bench.half.allocated(asked, table(list(range(24))), 0)  # vLLM says so again when more blocks are given
    bench.plan(Step())
    assert bench.adapter.check_lookup_result("r") == 4 * CHUNK

    bench.half.heard(report(finished=("r",)))

    until(lambda: bench.gateway.of(EndSession))


def test_each_chunk_is_stored_in_the_step_that_completes_it(bench: Bench) -> None:
    bench.find(0)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(21))), 0)
    keys = bench.adapter.chunk_keys("r", PROMPT)
    blocks = list(range(30, 51))

    first = bench.plan(Step().new("r", blocks, scheduled=CHUNK + 20))
    second = bench.plan(Step().running("r", blocks, scheduled=20, computed=CHUNK + 20))
    third = bench.plan(Step().running("r", blocks, scheduled=len(PROMPT) - CHUNK - 40, computed=CHUNK + 40))
    decode = bench.plan(Step().running("r", blocks, scheduled=1, computed=len(PROMPT)))

    assert first.stores == (Store("r", (keys[0],), tuple(blocks[:BLOCKS]), start=0),)
    assert not second.stores
    assert third.stores == (
        Store("r", tuple(keys[1:5]), tuple(blocks[BLOCKS : 5 * BLOCKS]), start=CHUNK, parent=keys[0]),
    )
    assert not decode.stores, "of what is generated nothing is stored"


def test_what_was_found_is_not_stored_again(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(16))), 4 * CHUNK)
    bench.plan(Step())
    bench.half.heard(report(finished=("r",)))

    plan = bench.plan(Step().new("r", list(range(21)), scheduled=CHUNK + 10, computed=4 * CHUNK))

    assert [store.start for store in plan.stores] == [4 * CHUNK]


def test_what_vllm_held_itself_and_the_gateway_did_not_is_stored(bench: Bench) -> None:
    bench.find(1)
    asked = request(tokens=PROMPT)
    bench.matched(asked, 3 * CHUNK)
    bench.half.allocated(asked, table(list(range(21))), 0)

    plan = bench.plan(Step().new("r", list(range(21)), scheduled=2 * CHUNK + 10, computed=3 * CHUNK))

    assert [(store.start, len(store.keys)) for store in plan.stores] == [(CHUNK, 4)]


def test_after_a_failed_load_the_answer_is_0_until_it_was_preempted(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(16))), 4 * CHUNK)
    bench.plan(Step())

    bench.half.heard(report(invalid=(0,)))
    bench.half.heard(report(finished=("r",)))

    assert [bench.half.matched(asked, 0) for _ in range(3)] == [0, 0, 0]
    plan = bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT)))
    assert [(store.start, len(store.keys)) for store in plan.stores] == [(0, 5)], "all is offered again"
    asked.num_preemptions += 1
    assert bench.matched(asked) == 4 * CHUNK


def test_a_failed_load_concerns_the_request_whose_blocks_they_were(bench: Bench) -> None:
    bench.find(4)
    one, other = request("one", PROMPT), request("other", PROMPT)
    for asked, first in ((one, 0), (other, 16)):
        bench.matched(asked)
        bench.half.allocated(asked, table(list(range(first, first + 16))), 4 * CHUNK)
    bench.plan(Step())

    bench.half.heard(report(invalid=(17,), finished=("one", "other")))

    assert bench.matched(one) == 4 * CHUNK
    assert bench.half.matched(other, 0) == 0


def test_a_preempted_request_is_looked_up_anew(bench: Bench) -> None:
    bench.find(0)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(21))), 0)
    bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT)))
    asked.num_preemptions = 1
    bench.find(2)

    assert bench.matched(asked) == 2 * CHUNK
    bench.half.allocated(asked, table(list(range(8))), 2 * CHUNK)
    bench.plan(Step())
    bench.half.heard(report(finished=("r",)))
    plan = bench.plan(Step().resumed("r", list(range(21)), scheduled=len(PROMPT) - 2 * CHUNK, computed=2 * CHUNK))

    assert [(store.start, len(store.keys)) for store in plan.stores] == [(2 * CHUNK, 3)]
    assert plan.fresh_blocks == tuple(range(2 * BLOCKS, 21))


def test_a_lease_that_ended_while_it_waited_for_blocks_is_asked_for_again(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    assert bench.matched(asked) == 4 * CHUNK
    bench.adapter.release_lookup("r")

    assert bench.half.matched(asked, 0) is None
    assert bench.matched(asked) == 4 * CHUNK
    assert len(bench.gateway.of(Lookup)) == 2


def test_every_block_given_out_is_told(bench: Bench) -> None:
    step = (
        Step()
        .new("new", [1, 2, 3], scheduled=20, computed=2 * BLOCK_TOKENS)
        .running("more", [4, 5], scheduled=1, computed=16, given=[5])
        .running("same", [6], scheduled=1, computed=3)
        .copies_to(9)
    )

    assert bench.plan(step).fresh_blocks == (3, 5, 9)


def test_a_finished_request_leaves_nothing(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.finished(asked)
    bench.half.finished(asked)
    until(lambda: len(bench.gateway.of(EndSession)) == 1)

    bench.half.heard(report(finished=("r",), invalid=(3,)))

    assert not bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT))).stores


def test_a_refused_lookup_is_a_miss_and_all_is_stored(bench: Bench) -> None:
    bench.gateway.answers[Lookup] = lambda _: Error(number=0, boot=b"", code=ErrorCode.DRAINING, message="")
    asked = request(tokens=PROMPT)

    assert bench.matched(asked) == 0
    bench.half.allocated(asked, table(list(range(21))), 0)

    assert len(bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT))).stores[0].keys) == 5


def test_after_a_reset_old_keys_are_not_used_and_old_kv_is_not_stored(bench: Bench) -> None:
    bench.find(0)
    asked = request(tokens=PROMPT)
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(21))), 0)
    (before,) = bench.plan(Step().new("r", list(range(21)), scheduled=2 * CHUNK)).stores

    assert bench.half.reset() is True

    step = Step().running("r", list(range(21)), scheduled=3 * CHUNK, computed=2 * CHUNK)
    assert not bench.plan(step).stores, "it was computed in part before"
    asked.num_preemptions = 1
    bench.matched(asked)
    bench.half.allocated(asked, table(list(range(21))), 0)
    (after,) = bench.plan(Step().resumed("r", list(range(21)), scheduled=len(PROMPT), computed=0)).stores
    assert not set(before.keys) & set(after.keys)


def test_who_does_not_want_to_read_is_stored_only(bench: Bench) -> None:
    bench.find(4)
    asked = request(tokens=PROMPT, skip_reading=True)

    assert bench.half.matched(asked, 0) == 0
    bench.half.allocated(asked, table(list(range(21))), 0)

    assert bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT))).stores
    assert not bench.gateway.of(Lookup)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(tokens=PROMPT, embeds=object()), "embeddings"),
        (request(tokens=PROMPT, resumable=True), "grows"),
        (request(tokens=PROMPT, items=(item(None, 0, 4),)), "no identifier"),
        (request(tokens=PROMPT, lora=lora("/nowhere")), "LoRA"),
    ],
    ids=["embeddings", "growing", "item", "lora"],
)
def test_what_has_no_key_is_neither_loaded_nor_stored_and_said_so(
    bench: Bench, caplog: pytest.LogCaptureFixture, asked, reason: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert [bench.half.matched(asked, 0) for _ in range(3)] == [0, 0, 0]
    bench.half.allocated(asked, table(list(range(21))), 0)

    assert not bench.plan(Step().new("r", list(range(21)), scheduled=len(PROMPT))).stores
    assert [reason in record.message for record in caplog.records] == [True], "once"


def test_the_engine_is_kept_stepping_for_the_last_numbers_only(bench: Bench) -> None:
    assert not bench.half.wants_steps
    bench.plan(Step().new("r", [1, 2], scheduled=20))
    bench.half.heard(report(meta=StepReport(is_pending=True)))
    assert bench.half.wants_steps
    bench.half.heard(report(meta=StepReport(is_pending=False)))
    assert not bench.half.wants_steps

    bench.half.heard(report(meta=StepReport(is_pending=True)))
    bench.clock.now += scheduler_half.LINGER_SECONDS

    assert not bench.half.wants_steps, "however long they are pending"


def test_ranks_whose_caches_are_not_parts_of_one_are_refused(bench: Bench) -> None:
    bench.half.set_geometries([GEOMETRY, Geometry("LBHNC", "bfloat16", 64, (LayerGeometry(1, 512),) * 2)])

    with pytest.raises(ValueError, match="unlike"):
        bench.half.set_geometries([GEOMETRY, Geometry("BLHNC", "bfloat16", 64, (LayerGeometry(1, 512),))])
