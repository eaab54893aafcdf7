"""An event lives as long as its operation is pending, and not longer, whatever ends it.

Real daemon, real sockets. Each road: the caller drops its event; it stays alive while the operation is pending; the
road is taken; the event is gone. The three gauges are read from a scrape at each step.
"""

import gc
import signal
import time
import weakref

import pytest

from adapter import State
from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.damage import damaged_pool
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until

PROMPT = tokens(2, seed=1)
OTHER = tokens(2, seed=2)
KINDS = ("store", "retrieve")
PENDING = {"store": (1, 0, 1), "retrieve": (0, 1, 1)}


@pytest.fixture
def daemon():
    with Daemon() as running:
        yield running.start()


def is_gone(reference) -> bool:
    gc.collect()
    return reference() is None


class Pending:
    """One operation with an event that only this object may fire; the test holds no reference to it."""

    def __init__(self, engine: Engine, kind: str, prompt=PROMPT) -> None:
        self.engine, self.kind = engine, kind
        event = FakeEvent()
        self.reference = weakref.ref(event)
        submit = engine.store if kind == "store" else engine.retrieve
        submit("r", prompt, blocks(2, first=10), event)

    def fire(self) -> None:
        self.reference().fire()

    def break_event(self) -> None:
        self.reference()._error = RuntimeError("device lost")

    def is_held(self) -> bool:
        gc.collect()
        return self.reference() is not None and self.engine.three() == PENDING[self.kind]

    def see_the_end(self, outcome: str, seconds: float = 10) -> None:
        """Settled with this outcome, counted once, the event gone within 100 ms or so, everything reported."""
        worker = self.engine.worker
        until(lambda: self.engine.three() == (0, 0, 0), seconds, "nothing pending")
        until(lambda: is_gone(self.reference), 1.0, "the event is gone")
        assert self.engine.total("operations", kind=self.kind, outcome=outcome) == 1
        sending, receiving = worker.get_finished({"r"})
        assert (sending, receiving) == ({"r"}, {"r"} if self.kind == "retrieve" else set())
        errors = worker.get_block_ids_with_load_errors()
        unfilled = set(blocks(2, first=10)) if self.kind == "retrieve" and outcome != "loaded" else set()
        assert errors == unfilled


def begin(daemon: Daemon, kind: str, **settings) -> tuple[Engine, Pending]:
    """An engine with one operation that waits for its event; a retrieve has something to retrieve."""
    engine = Engine(daemon.run_dir, **settings).wait_healthy()
    prompt = OTHER if kind == "store" else PROMPT
    engine.store_and_wait("first", PROMPT, blocks(2), seed=1)
    pending = Pending(engine, kind, prompt)
    assert pending.is_held()
    until(lambda: is_granted(daemon, kind), what="the gateway has granted it")
    return engine, pending


def is_granted(daemon: Daemon, kind: str) -> bool:
    now = daemon.snapshot()
    if kind == "store":
        return now.slots.writing == 2
    return sum(party.read_leases for engine in now.engines for party in engine.parties) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_done(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        done = engine.total("operations", kind="store", outcome="stored")
        assert pending.is_held()
        pending.fire()
        if kind == "store":
            until(lambda: engine.total("operations", kind="store", outcome="stored") == done + 1)
            until(lambda: is_gone(pending.reference), 1.0, "the event is gone")
            assert engine.three() == (0, 0, 0)
        else:
            pending.see_the_end("loaded")


@pytest.mark.parametrize("kind", KINDS)
def test_failed(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        pending.break_event()
        pending.see_the_end("failed")


@pytest.mark.parametrize(("kind", "outcome"), [("store", "refused"), ("retrieve", "failed")])
def test_refused_by_the_gateway(daemon, kind, outcome):
    """A store of keys that another operation is writing, a retrieve of keys that are not there.

    The daemon is paused meanwhile, so that the operation is seen pending before its refusal comes.
    """
    with Engine(daemon.run_dir, heartbeat_seconds=1.0) as engine:
        engine.wait_healthy()
        if kind == "store":
            engine.store("writer", OTHER, blocks(2), FakeEvent())
            until(lambda: daemon.snapshot().slots.writing == 2, what="the keys are reserved")
        stores, retrieves, events = engine.three()
        daemon.pause()
        pending = Pending(engine, kind, OTHER)
        gc.collect()
        assert pending.reference() is not None
        more = PENDING[kind]
        assert engine.three() == (stores + more[0], retrieves + more[1], events + more[2])
        daemon.go_on()
        until(lambda: is_gone(pending.reference), 5, "the event is gone")
        assert engine.three() == (stores, retrieves, events)
        assert engine.total("operations", kind=kind, outcome=outcome) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_refused_before_healthy(tmp_path, kind):
    with Engine(tmp_path / "nowhere") as engine:
        event = FakeEvent()
        reference = weakref.ref(event)
        submit = engine.store if kind == "store" else engine.retrieve
        submit("r", PROMPT, blocks(2), event)
        del event
        until(lambda: is_gone(reference), 1.0, "the event is gone")
        assert engine.total("operations", kind=kind, outcome="refused") == 1
        assert engine.worker.get_finished({"r"})[0] == {"r"}


def test_revoked(daemon):
    engine, pending = begin(daemon, "store")
    with engine:
        engine.worker.revoke_blocks([13])
        pending.see_the_end("revoked")
        assert engine.hit("later", OTHER) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_preempted(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        assert engine.worker.handle_preemptions({"r"}, timeout_seconds=1)
        pending.see_the_end("revoked")


@pytest.mark.parametrize("kind", KINDS)
def test_deadline(daemon, kind):
    engine, pending = begin(daemon, kind, operation_deadline_seconds=0.8)
    with engine:
        pending.see_the_end("expired")


@pytest.mark.parametrize("kind", KINDS)
def test_an_operators_drain_of_the_adapter(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        engine.worker.drain("maintenance", deadline_seconds=0)
        pending.see_the_end("drained")
        assert engine.worker.state is State.DRAINING
        assert engine.total("drains", trigger="operator") == 1
        engine.worker.drain("again", deadline_seconds=0)
        engine.worker.resume()
        engine.wait_healthy()
        assert engine.total("drains", trigger="operator") == 1
        engine.store_and_wait("after", tokens(1, seed=9), blocks(1), seed=9)


@pytest.mark.parametrize("kind", KINDS)
def test_an_operators_drain_of_the_adapter_with_a_deadline(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        engine.worker.drain("maintenance", deadline_seconds=1.0)
        assert pending.is_held()  # it has its grant: it may run on
        pending.see_the_end("drained")


@pytest.mark.parametrize("kind", KINDS)
def test_the_gateway_is_unhealthy(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        with damaged_pool(daemon):
            pending.see_the_end("drained")
            assert engine.total("drains", trigger="gateway_unhealthy") == 1
            assert engine.worker.state is State.UNHEALTHY
        engine.wait_healthy()
        engine.store_and_wait("after", tokens(1, seed=9), blocks(1), seed=9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_daemon_is_killed(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        daemon.signal(signal.SIGKILL)
        pending.see_the_end("drained", seconds=1.0)
        assert engine.worker.state is State.DEAD
        assert engine.total("drains", trigger="dead") == 1
        daemon.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_the_daemon_is_stopped(daemon, kind):
    engine, pending = begin(daemon, kind)
    with engine:
        daemon.pause()
        pending.see_the_end("drained", seconds=3.0)
        assert engine.worker.state is State.UNRESPONSIVE
        assert engine.total("drains", trigger="unresponsive") == 1
        daemon.go_on()
        engine.wait_healthy()


@pytest.mark.parametrize("kind", KINDS)
def test_the_daemon_is_restarted_between_two_heartbeats(daemon, kind):
    engine, pending = begin(daemon, kind, heartbeat_seconds=10.0)
    with engine:
        daemon.kill()
        daemon.start()
        pending.see_the_end("drained")
        engine.wait_healthy(25)
        assert engine.load("again", PROMPT, blocks(2, first=20)) == set()
        assert engine.read(blocks(2, first=20)) == engine.read(blocks(2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_is_closed(daemon, kind):
    engine, pending = begin(daemon, kind)
    engine.scheduler.close()
    engine.worker.close()
    until(lambda: is_gone(pending.reference), 1.0, "the event is gone")
    counts = engine.worker.snapshot()
    assert (counts.pending_stores, counts.pending_retrieves, counts.retained_events) == (0, 0, 0)
    assert counts.state is State.CLOSED


def test_the_gateways_scrape_follows(daemon):
    """Heartbeats carry the three gauges to the gateway's own /metrics, under the engine's name."""
    engine, pending = begin(daemon, "store", name="followed")
    with engine:

        def three():
            return scrape.three(scrape.of_gateway(daemon.admin_url), "kvgate_engine_", engine="followed")

        until(lambda: three() == (1, 0, 1), what="one store and its event")
        second = Pending(engine, "retrieve")
        until(lambda: three() == (1, 1, 2), what="a retrieve and its event beside it")
        pending.fire()
        until(lambda: three() == (0, 1, 1), what="the store is over")
        second.fire()
        until(lambda: three() == (0, 0, 0), what="nothing pending")


def test_one_event_shared_by_several_operations_is_held_until_the_last(daemon):
    with Engine(daemon.run_dir) as engine:
        engine.wait_healthy()
        event = FakeEvent()
        reference = weakref.ref(event)
        for i in range(3):
            engine.store(f"r{i}", tokens(1, seed=20 + i), blocks(1, first=2 * i), event)
        del event
        gc.collect()
        assert engine.three() == (3, 0, 1)
        engine.worker.revoke_blocks(blocks(1, first=0))
        engine.worker.revoke_blocks(blocks(1, first=2))
        until(lambda: engine.three() == (1, 0, 1))
        assert reference() is not None
        engine.worker.revoke_blocks(blocks(1, first=4))
        until(lambda: is_gone(reference), 1.0, "the event is gone")
        assert engine.three() == (0, 0, 0)


def test_a_destructor_that_takes_long_is_not_the_engines_business(daemon):
    """Dropping an event may cost 50 ms on some devices: never on the thread that submits and polls."""
    with Engine(daemon.run_dir) as engine:
        engine.wait_healthy()
        longest = 0.0
        for i in range(20):
            event = FakeEvent(fired=True, destructor_seconds=0.05)
            start = time.perf_counter()
            engine.store(f"r{i}", tokens(1, seed=100 + i), blocks(1), event)
            del event
            engine.worker.get_finished({f"r{i}"})
            longest = max(longest, time.perf_counter() - start)
        assert engine.worker.wait_settled(20)
        assert longest < 0.04
