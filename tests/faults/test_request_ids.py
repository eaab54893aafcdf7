"""A request's id is chosen by whoever sent the request: none of them may silence the engine that serves it."""

from adapter import State
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import EventCounter
from tests.support.poll import until

KINDS = ("lone surrogate \ud800", "long " * 20_000, "long, not ASCII \u00e9\ud800" * 5_000, "control\n\0\x1b[31m", "")


def test_an_engine_with_odd_ids_is_still_heard(daemon: Daemon) -> None:
    events = EventCounter()
    with Engine(daemon.run_dir, name="odd") as engine:
        engine.wait_healthy()
        ids = [f"{KINDS[i % len(KINDS)]}{i}" for i in range(60)]
        for i, one in enumerate(ids):
            engine.store(one, tokens(1, seed=i), blocks(1), events.make())
        until(lambda: _pending(daemon) == 60, what="the gateway heard of all stores")
        assert engine.worker.state is State.HEALTHY
        assert {operation.request_id for operation in engine.worker.snapshot().operations} == set(ids)

        engine.worker.handle_preemptions(ids, timeout_seconds=5)
        until(lambda: _pending(daemon) == 0, what="the gateway heard that all are settled")
        assert engine.worker.get_finished(ids) == (set(ids), set())
        assert engine.total("drains", trigger="unresponsive") == 0
    until(lambda: events.live == 0, what="no event is referred to")
    for told in daemon.snapshot(transfers=True).transfers:
        assert len(told.operation.request_id.encode()) <= 256


def _pending(daemon: Daemon) -> int:
    return sum(engine.pending_stores for engine in daemon.snapshot().engines if engine.name == "odd")
