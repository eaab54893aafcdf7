"""Handle mode, whole: a real engine and a real daemon that copies for it, through what faults the field has seen."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter import State, WorkerAdapter
from gateway.device import HostEvent
from gateway.pool.mapping import PoolMapping
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.engine import BLOCKS_PER_CHUNK, Engine, blocks, tokens
from tests.support.poll import until
from tests.support.scale import scaled

PROMPT = tokens(2, seed=1)
NOTHING = (0, 0, 0)


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    with Engine(daemon.run_dir, transfer="handle") as made:
        yield made.wait_healthy()


def gauge(daemon: Daemon, name: str) -> float:
    return next(sample.value for sample in daemon.snapshot().gauges if sample.name == name)


def outcomes(engine: Engine) -> dict[str, float]:
    return {f"{kind}-{outcome}": n for (kind, outcome), n in engine.worker._ledger.totals.operations.items()}


def is_at_rest(daemon: Daemon) -> bool:
    names = ("exported_events", "imported_events", "copying_operations")
    return all(gauge(daemon, name) == 0 for name in names) and not list((daemon.run_dir / "events").iterdir())


def wait(seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    until(lambda: time.monotonic() > ends_at, seconds + 5)


# -- events


def test_what_was_stored_is_loaded_and_nothing_is_left(engine: Engine, daemon: Daemon) -> None:
    engine.store_and_wait("r", PROMPT, blocks(2), seed=1)

    assert engine.load("r2", PROMPT, blocks(2, first=20)) == set()

    assert engine.read(blocks(2)) == engine.read(blocks(2, first=20))
    until(lambda: is_at_rest(daemon), what="no event is left on either side")


def test_an_event_lives_until_its_operation_is_settled_and_not_longer(engine: Engine, daemon: Daemon) -> None:
    event = HostEvent(daemon.run_dir)
    reference = weakref.ref(event)
    engine.store("r", PROMPT, blocks(2), event)
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")
    del event
    gc.collect()
    assert (reference() is not None, engine.three()) == (True, (1, 0, 1))

    reference().record()

    until(lambda: engine.three() == NOTHING, what="settled")
    until(lambda: gc.collect() >= 0 and reference() is None, 1.0, "the event is gone")
    until(lambda: is_at_rest(daemon), what="the daemon lets it go")


def test_a_daemon_that_opens_the_event_a_second_late_still_can(daemon: Daemon) -> None:
    with Engine(daemon.run_dir, transfer="handle", heartbeat_seconds=2.0).wait_healthy() as engine:
        daemon.pause()
        event = HostEvent(daemon.run_dir)
        event.record()
        engine.store("r", PROMPT, blocks(2), event)
        del event
        gc.collect()
        wait(1.0)
        daemon.go_on()

        until(lambda: outcomes(engine).get("store-stored") == 1, what="stored")


def test_without_retention_the_daemon_cannot_open_the_event(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of the field: a handle that outlives its event. Only the seam makes an adapter do so."""
    make = WorkerAdapter.__init__
    monkeypatch.setattr(WorkerAdapter, "__init__", lambda *a, **k: make(*a, **k, keeps_events=False))
    with Engine(daemon.run_dir, transfer="handle").wait_healthy() as engine:
        daemon.pause()
        event = HostEvent(daemon.run_dir)
        event.record()
        engine.store("r", PROMPT, blocks(2), event)
        reference = weakref.ref(event)
        del event
        until(lambda: gc.collect() >= 0 and reference() is None, 2.0, "nobody keeps the event")
        daemon.go_on()

        until(lambda: outcomes(engine).get("store-failed") == 1, what="the store has failed")
        assert engine.hit("check", PROMPT) == 0
        copies = [one for one in engine.worker.report().settled if one.reason == "event_error"]
        assert len(copies) == 1


def test_three_stores_of_one_request_keep_three_events_until_each_ends(engine: Engine, daemon: Daemon) -> None:
    events = [HostEvent(daemon.run_dir) for _ in range(3)]
    references = [weakref.ref(event) for event in events]
    for i, event in enumerate(events):
        engine.store("r", tokens(2, seed=10 + i), blocks(2, first=4 * i), event)
    del event
    until(lambda: gauge(daemon, "imported_events") == 3, what="all are imported")
    events.clear()
    for ended, i in enumerate((2, 0, 1), start=1):
        references[i]().record()
        until(lambda ended=ended: engine.three() == (3 - ended, 0, 3 - ended), what=f"{ended} have ended")
        gc.collect()
        until(lambda i=i: references[i]() is None, 1.0, "its event is gone")
    assert engine.worker.get_finished({"r"})[0] == {"r"}


def test_an_event_that_never_fires_ends_its_retrieve_and_nothing_else(daemon: Daemon) -> None:
    with Engine(daemon.run_dir, transfer="handle", operation_deadline_seconds=0.5).wait_healthy() as engine:
        engine.store_and_wait("first", PROMPT, blocks(2), seed=1)
        event = HostEvent(daemon.run_dir)
        engine.retrieve("r", PROMPT, blocks(2, first=10), event)
        assert engine.load("other", PROMPT, blocks(2, first=20)) == set(blocks(2, first=10))

        assert outcomes(engine).get("retrieve-expired") == 1
        assert engine.read(blocks(2, first=10)) == bytes(len(engine.read(blocks(2))))
        assert engine.worker.get_block_ids_with_load_errors() == set()
        event.close()
        until(lambda: is_at_rest(daemon), what="nothing is left")


def test_an_event_whose_destructor_takes_long_is_not_the_engines_business(engine: Engine, daemon: Daemon) -> None:
    class Slow(HostEvent):
        def __del__(self) -> None:
            time.sleep(0.05)
            super().__del__()

    longest = 0.0
    for i in range(20):
        event = Slow(daemon.run_dir)
        event.record()
        began = time.monotonic()
        engine.store("r", tokens(1, seed=50 + i), blocks(1, first=2 * i), event)
        engine.worker.get_finished()
        longest = max(longest, time.monotonic() - began)
        engine_holds_it = weakref.ref(event)
        del event
        until(lambda r=engine_holds_it: r() is None, 5, "settled and dropped")

    assert longest < 0.045, "a call took as long as a destructor does"


# -- given up


def test_revoked_blocks_are_not_published_however_the_store_goes_on(engine: Engine, daemon: Daemon) -> None:
    event = HostEvent(daemon.run_dir)
    engine.store("r", PROMPT, blocks(2), event)
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")
    daemon.pause()

    engine.worker.revoke_blocks(blocks(1))
    event.record()  # a daemon that never hears of CANCEL before it copies
    daemon.go_on()

    until(lambda: engine.three() == NOTHING, what="settled")
    assert outcomes(engine)["store-revoked"] == 1
    assert engine.hit("check", PROMPT) == 0


def test_preempted_requests_are_settled_when_the_call_returns(engine: Engine, daemon: Daemon) -> None:
    event = HostEvent(daemon.run_dir)
    engine.store("r", PROMPT, blocks(2), event)

    assert engine.worker.handle_preemptions(["r"], 5.0)

    assert outcomes(engine)["store-revoked"] == 1
    event.record()
    assert engine.hit("check", PROMPT) == 0


def test_a_drained_gateway_holds_nothing_of_an_engine(engine: Engine, daemon: Daemon) -> None:
    event = HostEvent(daemon.run_dir)
    engine.store("r", PROMPT, blocks(2), event)
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")

    engine.worker.drain("test", deadline_seconds=0)

    until(lambda: engine.three() == NOTHING, what="settled")
    event.close()
    until(lambda: is_at_rest(daemon), what="nothing is left")


# -- a daemon that is stopped in the middle of a copy

LARGE = {"KVGATE_POOL_SIZE": "64MiB", "KVGATE_SLAB_SIZE": "16MiB"}
LARGE_HEADS = 4096  # a chunk of 8 MiB


def stop_in_copy(daemon: Daemon) -> bool:
    """SIGSTOP the daemon once a slot's first bytes change; whether its last ones had not, and so are still to come."""
    mapping = PoolMapping.open(daemon.pool)
    slot_bytes = 8 << 20
    try:
        places = range(0, mapping.data_bytes, slot_bytes)
        heads = {place: bytes(mapping.data(place, 64)) for place in places}
        tails = {place: bytes(mapping.data(place + slot_bytes - 64, 64)) for place in places}
        ends_at = time.monotonic() + 2
        while time.monotonic() < ends_at:
            for place in places:
                if bytes(mapping.data(place, 64)) != heads[place]:
                    os.kill(daemon.pid, signal.SIGSTOP)
                    wait(0.02)
                    return bytes(mapping.data(place + slot_bytes - 64, 64)) == tails[place]
        return False  # it was over before we looked
    finally:
        mapping.close()


def test_a_daemon_frozen_in_a_store_publishes_nothing_that_was_overwritten() -> None:
    caught = 0
    with Daemon(LARGE) as daemon:
        daemon.start()
        with Engine(
            daemon.run_dir, transfer="handle", num_blocks=8, num_kv_heads=LARGE_HEADS, operation_deadline_seconds=1.0
        ).wait_healthy() as engine:
            for seed in range(6):
                prompt = tokens(1, seed=seed)
                engine.fill(blocks(1), seed)
                engine.store(f"r{seed}", prompt, blocks(1))
                caught += stop_in_copy(daemon)
                until(lambda: engine.three() == NOTHING, what="settled by its deadline")
                engine.fill(blocks(1), 99)  # the blocks are others' now
                daemon.go_on()
                engine.wait_healthy()
                # Finished before the stop, or not there at all; and on a busy machine a load may be late, and listed.
                if engine.hit(f"c{seed}", prompt) and not engine.load(f"l{seed}", prompt, blocks(1, first=4)):
                    engine.fill(blocks(1), seed)
                    assert engine.read(blocks(1, first=4)) == engine.read(blocks(1))
            assert caught, "the daemon was never stopped in the middle of a copy: the test has seen nothing"


def test_a_retrieve_of_a_frozen_daemon_keeps_its_blocks_until_the_watchdog_has_killed_it() -> None:
    with Daemon({"KVGATE_WATCHDOG_SECONDS": "3"}) as daemon:
        daemon.start()
        with Engine(daemon.run_dir, transfer="handle", operation_deadline_seconds=0.4).wait_healthy() as engine:
            engine.store_and_wait("first", PROMPT, blocks(2), seed=1)
            target = blocks(2, first=10)
            daemon.pause()
            engine.retrieve("r", PROMPT, target)
            until(lambda: engine.worker.report().counts.doubtful_blocks == 2 * BLOCKS_PER_CHUNK, what="in doubt")
            assert engine.worker.get_finished() == (set(), set())

            until(lambda: not daemon.is_running, 20, "the watchdog has killed it")
            until(lambda: engine.three() == NOTHING, 5, "settled by its death")

            assert engine.worker.get_finished()[1] == {"r"}
            assert engine.worker.get_block_ids_with_load_errors() == set(target)
            assert engine.worker.get_block_ids_with_load_errors() == set()
            engine.fill(target, 5)
            mine = engine.read(target)
            wait(scaled(2.0, 5.0))
            assert engine.read(target) == mine


# -- killed


def test_a_killed_daemon_leaves_nothing_pending_over_and_over(daemon: Daemon) -> None:
    with Engine(daemon.run_dir, transfer="handle", num_blocks=128).wait_healthy() as engine:
        for life in range(scaled(5, 20)):
            events = [HostEvent(daemon.run_dir) for _ in range(50)]
            for i, event in enumerate(events):
                engine.store(f"r{life}", tokens(1, seed=100 * life + i), blocks(1, first=2 * i), event)
                if i % 2:
                    event.record()
            daemon.kill()
            until(lambda: engine.three() == NOTHING, 5, "all are settled by its death")
            del event
            events.clear()
            gc.collect()
            assert engine.worker.get_finished({f"r{life}"})[0] == {f"r{life}"}
            daemon.start()
            engine.wait_healthy()
            until(lambda: is_at_rest(daemon), 10, "nothing is left")
        engine.store_and_wait("last", PROMPT, blocks(2), seed=3)


def test_a_killed_engine_leaves_nothing_mapped_imported_or_lying_about(daemon: Daemon) -> None:
    for _ in range(scaled(3, 20)):
        command = [sys.executable, "-m", "tests.support.engine_process", str(daemon.run_dir), "handle-pending"]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert b"submitted" in process.stdout.readline()
                until(lambda: gauge(daemon, "imported_events") == 50, what="fifty are in flight")
            finally:
                process.kill()
        until(lambda: gauge(daemon, "mapped_workers") == 0, what="its memory is not mapped")
    until(lambda: is_at_rest(daemon), 20, "its events are swept away")
    slots = daemon.snapshot().slots
    assert (slots.writing, slots.quarantined) == (0, 0)


def test_thousands_of_transfers_leave_no_descriptor_mapping_or_event(engine: Engine, daemon: Daemon) -> None:
    def held() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), daemon.pid)] + [
            Path(f"/proc/{pid}/maps").read_text().count("\n") for pid in (os.getpid(), daemon.pid)
        ]

    def transfer(count: int) -> None:
        for i in range(count):
            event = HostEvent(daemon.run_dir)
            event.record()
            engine.store("s", tokens(1, seed=i % 50), blocks(1), event)
            engine.retrieve("r", tokens(1, seed=i % 50), blocks(1, first=8), event)
            if i % 20 == 19:
                assert engine.worker.wait_settled(15)
                engine.worker.get_finished()
                engine.worker.get_block_ids_with_load_errors()

    transfer(100)
    before = held()
    transfer(scaled(1000, 5000))  # a store and a retrieve each
    gc.collect()
    until(lambda: is_at_rest(daemon), what="no event is left")
    # The allocators map a few dozen arenas in a long life; a leak would be one of each transfer.
    room = (3, 3, 100, 100)
    until(
        lambda: all(now <= then + more for now, then, more in zip(held(), before, room, strict=True)),
        5,
        f"no more descriptors and mappings than {before} with {room} more",
    )


def test_who_waits_for_events_is_not_niced(engine: Engine, daemon: Daemon) -> None:
    """A niced thread that asks events often may be put aside with the interpreter's lock, and the loop waits for it."""

    def wakes_of_niced() -> dict[str, int]:
        found = {}
        for task in Path(f"/proc/{daemon.pid}/task").iterdir():
            if int((task / "stat").read_text().rpartition(")")[2].split()[16]) > 0:
                [line] = [line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary")]
                found[task.name] = int(line.split()[1])
        return found

    event = HostEvent(daemon.run_dir)
    engine.store("r", PROMPT, blocks(2), event)
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")
    before = wakes_of_niced()
    wait(0.5)

    assert before, "copies run niced"
    assert all(now <= before[task] + 5 for task, now in wakes_of_niced().items())
    event.record()
    until(lambda: engine.three() == NOTHING, what="settled")


# -- who copies


def test_who_disagrees_about_copying_is_told_both_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with Daemon({"KVGATE_TRANSFER": "pool"}) as daemon, Engine(daemon.start().run_dir, transfer="handle") as engine:
        until(lambda: "transfer handle, this gateway has pool" in caplog.text, what="the refusal is logged")
        assert engine.worker.state is not State.HEALTHY
        engine.store("r", PROMPT, blocks(2))
        assert engine.three() == NOTHING
