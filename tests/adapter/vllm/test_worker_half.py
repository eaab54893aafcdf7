"""What the worker half of the vLLM connector does with a plan: real tensors, a real gateway."""

from collections.abc import Iterator

import pytest
import torch

from adapter import AdapterConfig, CacheIdentity, Geometry, WorkerAdapter
from adapter.vllm.plans import Load, StepPlan, StepReport, Store
from adapter.vllm.worker_half import WorkerHalf
from tests.support.daemon import Daemon
from tests.support.events import FakeEvent
from tests.support.poll import until

CHUNK, BLOCK = 64, 16
BLOCKS = CHUNK // BLOCK
IDENTITY = CacheIdentity("tiny", dtype="float32", block_tokens=BLOCK, chunk_tokens=CHUNK)
KEYS = tuple(bytes([i]) * 32 for i in range(8))


class Bench:
    """A worker half over two layers ``[64, 2, 16, 8]``, and the events it was given."""

    def __init__(self, daemon: Daemon, *, fires: bool = True) -> None:
        self.fires = fires
        self.events: list[FakeEvent] = []
        self.caches = {f"layer.{i}": torch.randn(64, 2, BLOCK, 8) for i in range(2)}
        config = AdapterConfig(heartbeat_seconds=0.2, engine_name="worker")
        self.adapter = WorkerAdapter(daemon.run_dir, IDENTITY, "g", config)
        self.half = WorkerHalf(self.adapter, self.record)
        self.half.register(self.caches, 64, "LBHNC")
        assert self.adapter.wait_healthy(20)

    def record(self) -> FakeEvent:
        event = FakeEvent(fired=self.fires)
        self.events.append(event)
        return event

    def step(self, plan: StepPlan) -> tuple[set[str], set[int]]:
        """One step of vLLM's model runner."""
        self.half.begin_step(plan)
        self.half.bind(plan)
        self.half.start_loads(plan)
        self.half.submit_stores()
        return self.half.received(), self.half.failed_blocks()

    def read(self, blocks: tuple[int, ...]) -> torch.Tensor:
        return torch.stack([cache[list(blocks)] for cache in self.caches.values()])

    def total(self, outcome: str) -> float | None:
        labels = {"kind": "store", "outcome": outcome}
        return self.adapter.registry.get_sample_value("kvgate_adapter_operations_total", labels)


@pytest.fixture
def bench(daemon: Daemon) -> Iterator[Bench]:
    made = Bench(daemon)
    yield made
    made.adapter.close()


def store(first_block: int, chunks: int = 2, request_id: str = "r", first_key: int = 0) -> Store:
    blocks = tuple(range(first_block, first_block + chunks * BLOCKS))
    return Store(request_id, KEYS[first_key : first_key + chunks], blocks, start=0)


def test_what_is_stored_is_loaded(bench: Bench) -> None:
    assert bench.step(StepPlan(stores=(store(0),))) == (set(), set())
    assert bench.adapter.wait_settled(10)
    wanted = bench.read(tuple(range(8)))

    plan = StepPlan(loads=(Load("s", KEYS[:2], tuple(range(20, 28)), start=0),), is_idle=True)
    received, failed = bench.step(plan)
    while not received:
        received, more = bench.step(StepPlan(is_idle=True))
        failed |= more

    assert (received, failed) == ({"s"}, set())
    assert torch.equal(bench.read(tuple(range(20, 28))), wanted)
    assert len(bench.events) == 2, "one for the store, one for the load"


def test_blocks_that_vllm_holds_are_left_alone_and_not_listed(bench: Bench) -> None:
    bench.step(StepPlan(stores=(store(0, chunks=1),)))
    assert bench.adapter.wait_settled(10)
    wanted, held = bench.read((2, 3)), bench.read((20, 21))

    bench.step(StepPlan(loads=(Load("s", KEYS[:1], (20, 21, 22, 23), start=0, skip_tokens=2 * BLOCK),)))
    bench.step(StepPlan(loads=(Load("t", KEYS[5:6], (30, 31, 32, 33), start=0, skip_tokens=2 * BLOCK),)))
    assert bench.adapter.wait_settled(10)

    assert bench.half.received() == {"s", "t"}
    assert bench.half.failed_blocks() == {32, 33}
    assert torch.equal(bench.read((22, 23)), wanted)
    assert torch.equal(bench.read((20, 21)), held)


def test_one_event_serves_all_stores_of_a_step(bench: Bench) -> None:
    bench.step(StepPlan(stores=(store(0), store(10, request_id="s", first_key=4))))
    assert bench.adapter.wait_settled(10)

    assert len(bench.events) == 1
    assert bench.total("stored") == 2


def test_blocks_that_are_given_out_again_are_not_stored(bench: Bench) -> None:
    bench.fires = False
    bench.step(StepPlan(stores=(store(0), store(10, request_id="s", first_key=4))))

    bench.half.begin_step(StepPlan(fresh_blocks=(3,)))
    for event in bench.events:
        event.fire()

    assert bench.adapter.wait_settled(10)
    assert (bench.total("revoked"), bench.total("stored")) == (1, 1)


def test_stores_that_were_not_begun_in_their_step_begin_before_the_next_overwrites_anything(bench: Bench) -> None:
    plan = StepPlan(stores=(store(0),))
    bench.half.begin_step(plan)
    bench.half.bind(plan)
    assert not bench.events

    bench.half.begin_step(StepPlan(fresh_blocks=(50,)))
    bench.half.submit_stores()

    assert bench.adapter.wait_settled(10)
    assert bench.total("stored") == 1, "once"


def test_a_step_that_computes_waits_for_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(bench.adapter, "wait_received", waits.append)

    bench.step(StepPlan(stores=(store(0),)))
    assert not waits
    bench.step(StepPlan(is_idle=True))

    assert len(waits) == 1
    assert 0 < waits[0] <= 0.005


def test_the_report_says_whether_work_is_pending(bench: Bench) -> None:
    bench.fires = False
    assert bench.half.report() == StepReport(is_pending=False)
    bench.step(StepPlan(stores=(store(0),)))
    assert bench.half.report() == StepReport(is_pending=True)
    bench.events[0].fire()

    until(lambda: not bench.half.report().is_pending)
    assert StepReport(False).aggregate(StepReport(True)) == StepReport(True)


def test_smaller_blocks_of_a_kernel_are_put_together(daemon: Daemon) -> None:
    adapter = WorkerAdapter(daemon.run_dir, IDENTITY, "g", AdapterConfig(engine_name="kernel"))
    half = WorkerHalf(adapter, lambda: None)
    half.register({"layer": torch.zeros(128, 2, BLOCK // 2, 8)}, 64, "LBHNC")

    geometry = Geometry.from_bytes(half.geometry().encoded)

    assert geometry.num_blocks == 64
    assert geometry.block_bytes() == 2 * BLOCK * 8 * 4
    adapter.close()
