"""The worker half, on a real gateway where bytes matter and on a scripted one where it must misbehave."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, State, WorkerAdapter
from adapter.transfer.chunks import copy_unit
from gateway.lock import LockObserver, party_offset
from gateway.wire.codes import OperationKind, Phase, Reason, ReserveStatus
from gateway.wire.messages import (
    Abort,
    Commit,
    EndRead,
    Ping,
    Read,
    Readable,
    ReadSlot,
    Reserve,
    Reserved,
    SlotGrant,
)
from tests.adapter.held import HeldCopy
from tests.adapter.scripted import ScriptedGateway
from tests.support.daemon import Daemon
from tests.support.engine import BLOCK_TOKENS, Engine, blocks, tokens
from tests.support.events import EventCounter, FakeEvent
from tests.support.poll import until


@contextlib.contextmanager
def ready(run_dir, **settings) -> Iterator[Engine]:
    with Engine(run_dir, **{"heartbeat_seconds": 0.1, **settings}) as engine:
        yield engine.wait_healthy()


def reasons(gateway: ScriptedGateway) -> list[str]:
    """Why operations ended, as heartbeats told it."""
    return [str(info.reason) for ping in gateway.of(Ping) if ping.stats for info in ping.stats.settled]


# -- bytes


@pytest.mark.parametrize("copy_threads", [1, 3])
def test_what_was_stored_is_loaded_byte_for_byte(daemon: Daemon, copy_threads: int) -> None:
    prompt = tokens(6)
    with ready(daemon.run_dir, copy_threads=copy_threads) as engine:
        engine.store_and_wait("r", prompt, blocks(6), seed=1)
        assert engine.load("s", prompt, blocks(6, 20)) == set()
        assert engine.read(blocks(6, 20)) == engine.read(blocks(6))
        assert engine.worker.get_finished(["r"]) == ({"r"}, {"s"})
        assert (
            engine.total("bytes", kind="store") == engine.total("bytes", kind="retrieve") == len(engine.read(blocks(6)))
        )
        assert engine.total("loaded_tokens") == len(prompt)
        assert engine.worker.registry.get_sample_value("kvgate_adapter_load_wait_seconds_count") == 1
        assert engine.three() == (0, 0, 0)


def test_skipped_blocks_are_not_written(daemon: Daemon) -> None:
    prompt = tokens(3)
    with ready(daemon.run_dir) as engine:
        engine.store_and_wait("r", prompt, blocks(3), seed=1)
        engine.fill(blocks(3, 20), seed=9)
        before = engine.read(blocks(3, 20)[:3])
        op = LoadStoreOp.from_tokens(prompt, blocks(3, 20), engine.identity, skip_first_tokens=3 * BLOCK_TOKENS)
        engine.worker.submit_retrieve_request("s", op)
        assert engine.worker.wait_settled(20)
        assert engine.worker.get_block_ids_with_load_errors() == set()
        assert engine.read(blocks(3, 20)[:3]) == before
        assert engine.read(blocks(3, 20)[3:]) == engine.read(blocks(3)[3:])
        assert engine.total("loaded_tokens") == 3 * BLOCK_TOKENS


def test_the_middle_of_a_prompt(daemon: Daemon) -> None:
    prompt = tokens(4)
    with ready(daemon.run_dir) as engine:
        engine.store_and_wait("r", prompt, blocks(4), seed=1)
        chunk = engine.identity.chunk_tokens
        op = LoadStoreOp.from_tokens(prompt, blocks(2, 20), engine.identity, start=chunk, end=3 * chunk)
        engine.worker.submit_retrieve_request("s", op)
        assert engine.worker.wait_settled(20)
        assert engine.read(blocks(2, 20)) == engine.read(blocks(4)[2:6])


def test_what_is_not_there_lists_exactly_its_blocks(daemon: Daemon) -> None:
    prompt = tokens(4)
    with ready(daemon.run_dir) as engine:
        engine.store_and_wait("r", prompt[: len(prompt) // 2], blocks(2), seed=1)
        assert engine.load("s", prompt, blocks(4, 20)) == set(blocks(4, 20)[4:])
        assert engine.worker.get_failed_request_ids() == {"s"}
        assert engine.total("operations", kind="retrieve", outcome="partial") == 1
        assert engine.read(blocks(4, 20)[:4]) == engine.read(blocks(2))


def test_submit_keeps_its_own_copies(daemon: Daemon) -> None:
    prompt, event = tokens(2), FakeEvent()
    with ready(daemon.run_dir) as engine:
        engine.fill(blocks(2), seed=1)
        block_ids = blocks(2)
        op = LoadStoreOp.from_tokens(prompt, block_ids, engine.identity)
        mutable = dataclasses.replace(op, keys=list(op.keys), block_ids=block_ids)
        engine.worker.submit_store_request("r", mutable, event)
        block_ids[:] = [60] * 4
        mutable.keys.clear()
        event.fire()
        assert engine.worker.wait_settled(20)
        assert engine.load("s", prompt, blocks(2, 20)) == set()
        assert engine.read(blocks(2, 20)) == engine.read(blocks(2))


def test_another_shard_or_dtype_never_meets(daemon: Daemon) -> None:
    prompt = tokens(1)
    with ready(daemon.run_dir) as engine:
        engine.store_and_wait("r", prompt, blocks(1), seed=1)
        for change in ({"revision": "2"}, {"fingerprint": "rope"}, {"shard_count": 2}, {"model": "other"}):
            identity = dataclasses.replace(engine.identity, **change)
            worker = WorkerAdapter(daemon.run_dir, identity, "g", AdapterConfig(heartbeat_seconds=0.1))
            try:
                worker.register_kv_caches(engine.caches, "NHD", 1)
                assert worker.wait_healthy(20)
                worker.submit_retrieve_request("x", LoadStoreOp.from_tokens(prompt, blocks(1, 20), identity))
                assert worker.wait_settled(20)
                assert worker.get_failed_request_ids() == {"x"}
            finally:
                worker.close()


def test_layouts_never_meet(daemon: Daemon) -> None:
    prompt = tokens(1)
    with ready(daemon.run_dir) as engine:
        engine.store_and_wait("r", prompt, blocks(1), seed=1)
        worker = WorkerAdapter(daemon.run_dir, engine.identity, "g", AdapterConfig(heartbeat_seconds=0.1))
        try:
            worker.register_kv_caches(engine.caches, "HND", 1)
            assert worker.wait_healthy(20)
            worker.submit_retrieve_request("x", LoadStoreOp.from_tokens(prompt, blocks(1, 20), engine.identity))
            assert worker.wait_settled(20)
            assert worker.get_failed_request_ids() == {"x"}
        finally:
            worker.close()


# -- copies that fail or take long


def test_a_copy_that_raises_fails_its_operation_and_nothing_else(daemon: Daemon) -> None:
    faults = [RuntimeError("no such page")]

    def copy(unit, mapping, copier) -> Reason:
        if faults:
            raise faults.pop()
        return copy_unit(unit, mapping, copier)

    with ready(daemon.run_dir, copy=copy) as engine:
        engine.store("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(20)
        assert engine.total("operations", kind="store", outcome="failed") == 1
        assert engine.hit("q", tokens(1)) == 0
        engine.store_and_wait("r", tokens(1), blocks(1), seed=1)


def test_bytes_of_another_generation_are_not_believed(daemon: Daemon) -> None:
    prompt = tokens(2)

    def copy(unit, mapping, copier) -> Reason:
        if unit.kind is OperationKind.RETRIEVE and unit.chunk == 1:
            unit = dataclasses.replace(unit, generation=unit.generation + 1)
        return copy_unit(unit, mapping, copier)

    with ready(daemon.run_dir, copy=copy) as engine:
        engine.store_and_wait("r", prompt, blocks(2), seed=1)
        assert engine.load("s", prompt, blocks(2, 20)) == set(blocks(2, 20)[2:])


def test_a_running_copy_is_waited_for_and_its_commit_withheld(daemon: Daemon, held: HeldCopy) -> None:
    with ready(daemon.run_dir, copy=held) as engine:
        number = engine.store("r", tokens(2), blocks(2))
        assert held.begun.wait(20)
        engine.worker.revoke_blocks(blocks(1))
        snapshot = engine.worker.snapshot()
        assert snapshot.settling_operations == snapshot.pending_stores == 1
        assert [(op.number, op.phase) for op in snapshot.operations] == [(number, Phase.SETTLING)]
        assert engine.worker.get_finished(["r"]) == (set(), set())
        assert not engine.worker.handle_preemptions(["r"], 0.05)
        held.go.set()
        assert engine.worker.handle_preemptions(["r"], 20)
        assert engine.worker.get_finished() == ({"r"}, set())
        assert engine.total("operations", kind="store", outcome="revoked") == 1
        assert engine.hit("q", tokens(2)) == 0


def test_close_keeps_the_lock_while_a_copy_runs(daemon: Daemon, held: HeldCopy, caplog) -> None:
    engine = Engine(daemon.run_dir, copy=held, heartbeat_seconds=0.1).wait_healthy()
    observer = LockObserver.open(daemon.pool)
    offset = party_offset(engine.worker._link.party)
    engine.store("r", tokens(1), blocks(1))
    assert held.begun.wait(20)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 3
    assert "a copy still runs" in caplog.text
    assert observer.is_held(offset)
    assert engine.worker.get_finished(["r"]) == (set(), set())
    held.go.set()
    until(lambda: not observer.is_held(offset), 10, "the lock went with the copy")
    assert engine.worker.get_finished() == ({"r"}, set())
    observer.close()


def test_drain_with_no_time_settles_all_but_what_runs(daemon: Daemon, held: HeldCopy) -> None:
    with ready(daemon.run_dir, copy=held) as engine:
        engine.store("a", tokens(1), blocks(1))
        engine.store("b", tokens(1, 1), blocks(1, 4), FakeEvent())
        assert held.begun.wait(20)
        engine.worker.drain("test", 0)
        assert engine.worker.state is State.DRAINING
        assert engine.worker.get_finished(["a", "b"])[0] == {"b"}
        engine.worker.drain("test", 0)
        held.go.set()
        assert engine.worker.wait_settled(20)
        engine.store("c", tokens(1, 2), blocks(1))
        assert engine.total("operations", kind="store", outcome="refused") == 1
        assert engine.total("drains", trigger="operator") == 1
        engine.worker.resume()
        engine.worker.resume()
        assert engine.worker.state is State.HEALTHY
        engine.store("d", tokens(1, 3), blocks(1))
        assert engine.worker.wait_settled(20)
        assert engine.total("operations", kind="store", outcome="stored") == 1


def test_drain_lets_granted_work_run_on(daemon: Daemon, held: HeldCopy) -> None:
    with ready(daemon.run_dir, copy=held) as engine:
        engine.store("a", tokens(2), blocks(2))
        assert held.begun.wait(20)
        engine.worker.drain("test")
        held.go.set()
        assert engine.worker.wait_settled(20)
        assert engine.total("operations", kind="store", outcome="stored") == 1


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
def test_a_drain_needs_a_deadline_that_comes(run_dir, bad: float) -> None:
    with Engine(run_dir) as engine, pytest.raises(ValueError, match="at least 0"):
        engine.worker.drain("test", bad)


# -- events


def test_an_event_is_held_while_pending_and_dropped_soon_after(daemon: Daemon) -> None:
    counter = EventCounter()
    with ready(daemon.run_dir) as engine:
        event = counter.make()
        for i in range(3):
            engine.store("r", tokens(1, i), blocks(1, 4 * i), event)
        assert engine.three() == (3, 0, 1)
        event.fire()
        del event
        assert engine.worker.wait_settled(20)
        until(lambda: counter.live == 0, 5, "the event was dropped")
        assert engine.three() == (0, 0, 0)


def test_waiting_for_loads_ends_with_the_first_and_does_not_wait_for_stores(daemon: Daemon) -> None:
    with ready(daemon.run_dir, heartbeat_seconds=1) as engine:
        assert engine.worker.wait_received(0), "nothing is pending"
        engine.store_and_wait("r", tokens(1, 1), blocks(1), seed=1)
        event = FakeEvent()
        engine.store("store", tokens(1, 2), blocks(1, 4), event)
        engine.retrieve("slow", tokens(1, 1), blocks(1, 8), event)
        assert not engine.worker.wait_received(0)
        engine.retrieve("quick", tokens(1, 1), blocks(1, 12))

        assert engine.worker.wait_received(20)

        assert engine.worker.get_finished() == (set(), {"quick"})
        assert not engine.worker.wait_received(0), "it was told"
        event.fire()
        assert engine.worker.wait_settled(20)


def test_the_destructor_of_an_event_runs_off_the_engines_thread(daemon: Daemon) -> None:
    engine_thread, died_on = threading.get_ident(), []

    class Event(FakeEvent):
        def __del__(self) -> None:
            died_on.append(threading.get_ident())

    with ready(daemon.run_dir) as engine:
        for i in range(20):
            engine.store(f"r{i}", tokens(1, i), blocks(1), Event())
        engine.worker.revoke_blocks(blocks(1))
        assert engine.worker.wait_settled(20)
        until(lambda: len(died_on) == 20, what="all events died")
        assert engine_thread not in died_on


def test_an_event_that_raises_fails_its_operation(daemon: Daemon) -> None:
    with ready(daemon.run_dir) as engine:
        engine.retrieve("r", tokens(1), blocks(1), FakeEvent(error=RuntimeError("device lost")))
        assert engine.worker.wait_settled(20)
        assert engine.worker.get_block_ids_with_load_errors() == set(blocks(1))
        assert engine.total("operations", kind="retrieve", outcome="failed") == 1


def test_an_event_that_never_fires_expires_with_a_warning(daemon: Daemon, caplog) -> None:
    with ready(daemon.run_dir, operation_deadline_seconds=0.3) as engine:
        engine.store("request-7", tokens(1), blocks(1), FakeEvent())
        assert engine.worker.wait_settled(20)
        assert engine.total("operations", kind="store", outcome="expired") == 1
        until(lambda: "request-7" in caplog.text, what="a warning with the request's id")


def test_an_event_must_have_a_query(run_dir) -> None:
    with Engine(run_dir) as engine, pytest.raises(ValueError, match="query"):
        engine.store("r", tokens(1), blocks(1), object())


# -- what a gateway may get wrong


@pytest.mark.parametrize(
    ("pool_id", "grant"),
    [
        (b"another pool    ", SlotGrant(ReserveStatus.GRANTED, 0, 0, 1)),
        (None, SlotGrant(ReserveStatus.GRANTED, 0, 1 << 40, 1)),
        (None, SlotGrant(ReserveStatus.GRANTED, 0, -4096, 1)),
        (None, SlotGrant(ReserveStatus.GRANTED, -1, 0, 1)),
        (None, SlotGrant(ReserveStatus.BUSY, 0, 0, 1)),
    ],
)
def test_nothing_is_copied_to_where_a_bad_grant_points(
    scripted: ScriptedGateway, pool_id: bytes | None, grant: SlotGrant
) -> None:
    scripted.answers[Reserve] = lambda _: Reserved(
        number=0, boot=b"", pool_id=pool_id or scripted.pool.pool_id, grants=(grant,)
    )

    def copy(*_) -> Reason:
        raise AssertionError("copied")

    with ready(scripted.run_dir, copy=copy) as engine:
        engine.store("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(20)
        until(lambda: reasons(scripted) == ["bad_reply"])
        until(lambda: scripted.of(Abort), what="what was reserved is given back")


@pytest.mark.parametrize(
    ("pool_id", "slot"),
    [
        (b"another pool    ", ReadSlot(0, 0, 1)),
        (None, ReadSlot(0, 1 << 40, 1)),
        (None, ReadSlot(0, -4096, 1)),
    ],
)
def test_nothing_is_copied_from_where_a_bad_lease_points(
    scripted: ScriptedGateway, pool_id: bytes | None, slot: ReadSlot
) -> None:
    scripted.answers[Read] = lambda _: Readable(
        number=0, boot=b"", pool_id=pool_id or scripted.pool.pool_id, slots=(slot,)
    )

    def copy(*_) -> Reason:
        raise AssertionError("copied")

    with ready(scripted.run_dir, copy=copy) as engine:
        engine.retrieve("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(20)
        assert engine.worker.get_block_ids_with_load_errors() == set(blocks(1))
        until(lambda: reasons(scripted) == ["bad_reply"])
        until(lambda: scripted.of(EndRead), what="what was leased is given back")


def test_too_few_grants_are_no_answer(scripted: ScriptedGateway) -> None:
    scripted.answers[Reserve] = lambda _: Reserved(number=0, boot=b"", pool_id=scripted.pool.pool_id, grants=())
    with ready(scripted.run_dir) as engine:
        engine.store("r", tokens(2), blocks(2))
        assert engine.worker.wait_settled(20)
        until(lambda: reasons(scripted) == ["bad_reply"])


def test_an_unanswered_commit_is_not_reported_as_stored(scripted: ScriptedGateway) -> None:
    scripted.silence(Commit)
    with ready(scripted.run_dir, operation_deadline_seconds=0.5) as engine:
        engine.store("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(20)
        assert engine.total("operations", kind="store", outcome="stored") == 0


def test_every_retrieve_ends_its_lease(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        number = engine.retrieve("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(20)
        until(lambda: [done.operation for done in scripted.of(EndRead)] == [number])


def test_heartbeats_carry_what_is_pending_and_what_has_settled(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        number = engine.store("r", tokens(1), blocks(1), event := FakeEvent())
        party = engine.worker._link.party
        until(lambda: any(p.operations == (number,) for p in scripted.of(Ping) if p.party == party))
        ping = next(p for p in scripted.of(Ping) if p.party == party and p.operations)
        assert ping.next_operation == number + 1
        assert [info.request_id for info in ping.stats.pending] == ["r"]
        gauges = {sample.name: sample.value for sample in ping.stats.gauges if not sample.labels}
        assert (gauges["pending_stores"], gauges["retained_events"]) == (1, 1)
        event.fire()
        assert engine.worker.wait_settled(20)
        until(lambda: reasons(scripted) == [""])


def test_a_replica_stores_nothing_and_says_so(scripted: ScriptedGateway) -> None:
    identity = CacheIdentity("tiny", block_tokens=16, chunk_tokens=32, replicas=2, replica=1)
    worker = WorkerAdapter(scripted.run_dir, identity, "g", AdapterConfig(heartbeat_seconds=0.1))
    try:
        worker.register_kv_caches({"a": torch.zeros(2, 8, 16, 1, 4, dtype=torch.bfloat16)}, "NHD", 1)
        assert worker.wait_healthy(20)
        worker.submit_store_request("r", LoadStoreOp.from_tokens(tokens(1), [0, 1], identity))
        assert worker.wait_settled(20)
        assert worker.get_finished(["r"]) == ({"r"}, set())
        assert worker.registry.get_sample_value("kvgate_adapter_bytes_total", {"kind": "store"}) == 0
        assert not scripted.of(Reserve)
    finally:
        worker.close()


# -- set-up


def test_healthy_comes_before_the_cache_and_work_right_after_it(daemon: Daemon) -> None:
    identity = CacheIdentity("tiny", block_tokens=16, chunk_tokens=32)
    worker = WorkerAdapter(daemon.run_dir, identity, "g", AdapterConfig(heartbeat_seconds=0.1))
    try:
        with pytest.raises(RuntimeError, match="register_kv_caches"):
            _ = worker.geometry
        assert worker.wait_healthy(20)
        worker.submit_store_request("early", LoadStoreOp.from_tokens(tokens(1), [0, 1], identity))
        assert worker.get_finished(["early"])[0] == {"early"}
        worker.register_kv_caches({"a": torch.zeros(2, 8, 16, 1, 4, dtype=torch.bfloat16)}, "NHD", 1)
        worker.submit_store_request("r", LoadStoreOp.from_tokens(tokens(1), [0, 1], identity))
        assert worker.wait_settled(20)
        stored = worker.registry.get_sample_value(
            "kvgate_adapter_operations_total", {"kind": "store", "outcome": "stored"}
        )
        assert stored == 1
    finally:
        worker.close()


def test_a_cache_that_does_not_fit_changes_nothing(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        for bad in (
            {},
            {"a": torch.zeros(2, 8, 16, 1, 4)},  # float32, the identity says bfloat16
            {"a": torch.zeros(2, 8, 15, 1, 3, dtype=torch.bfloat16)},
        ):
            with pytest.raises(ValueError, match=r"."):
                engine.worker.register_kv_caches(bad, "NHD", 1)
        with pytest.raises(RuntimeError, match="registered as"):
            engine.worker.register_kv_caches({"a": torch.zeros(2, 8, 16, 1, 4, dtype=torch.bfloat16)}, "NHD", 1)
        engine.store("r", tokens(1), blocks(1), event := FakeEvent())
        with pytest.raises(RuntimeError, match="pending"):
            engine.worker.register_kv_caches(engine.caches, "NHD", 1)
        event.fire()
        assert engine.worker.wait_settled(20)
        engine.worker.register_kv_caches(engine.caches, "NHD", 1)


def test_bounds_refuse_stores(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir, max_pending_ops=2) as engine:
        events = [FakeEvent() for _ in range(3)]
        for i, event in enumerate(events):
            engine.store(f"r{i}", tokens(1, i), blocks(1, 4 * i), event)
        assert engine.worker.get_finished(["r2"])[0] == {"r2"}
        assert engine.three() == (2, 0, 2)


def test_the_engines_thread_does_not_wait_with_a_thousand_pending(
    scripted: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound far above what is measured: it fails when calls wait for the gateway, which answers nothing."""
    monkeypatch.setenv("KVGATE_VERIFY", "0")  # a check of all operations after each step would be what is measured
    scripted.silence(Reserve)
    with ready(scripted.run_dir) as engine:
        began = time.monotonic()
        for i in range(1000):
            engine.store(f"r{i}", tokens(1, i), blocks(1), FakeEvent())
        assert engine.worker.snapshot().pending_stores > 0
        for _ in range(10):
            engine.worker.get_finished([f"r{i}" for i in range(1000)])
        engine.worker.revoke_blocks(blocks(1))
        assert engine.worker.snapshot().pending_stores == 0
        assert time.monotonic() - began < 20
