"""Drain and health of the gateway trigger the clean-up of every adapter's pending work, and both sides say so alike."""

import threading
import time

import httpx
import pytest

from adapter import State
from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.damage import damaged_pool
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until


@pytest.fixture
def daemon():
    with Daemon() as running:
        yield running.start()


@pytest.fixture
def api(daemon):
    with httpx.Client(base_url=daemon.admin_url, timeout=20, trust_env=False) as client:
        yield client


def drain_of(api) -> dict:
    return api.get("/v1/drain").json()


def gateway_three(daemon, engine: str) -> tuple[int, int, int]:
    return scrape.three(scrape.of_gateway(daemon.admin_url), "kvgate_engine_", engine=engine)


def test_a_drain_empties_every_adapter_by_its_deadline(daemon, api):
    engines = [Engine(daemon.run_dir, name=f"e{i}").wait_healthy() for i in range(2)]
    try:
        for i, engine in enumerate(engines):
            prompt = tokens(2, seed=i)
            engine.store_and_wait("first", prompt, blocks(2), seed=i)
            engine.store("held", tokens(1, seed=50 + i), blocks(1, first=10), FakeEvent())
            engine.retrieve("loading", prompt, blocks(2, first=20), FakeEvent())
            assert engine.three() == (1, 1, 2)
            until(lambda e=engine: gateway_three(daemon, e.engine_name()) == (1, 1, 2), what="the scrape follows")
        started = time.monotonic()
        reply = api.post("/v1/drain", json={"deadline_seconds": 1.5, "reason": "kernel update"})
        assert reply.status_code == 202
        assert api.get("/readyz").status_code == 503  # in the same step
        for engine in engines:
            until(lambda e=engine: e.worker.state is State.DRAINING, 2, "told within a heartbeat")
            assert engine.hit("draining", tokens(2, seed=0)) == 0
            engine.store("new", tokens(1, seed=90), blocks(1, first=30))
        record = api.get("/v1/drain", params={"wait_seconds": 10}).json()
        took = time.monotonic() - started
        assert record["outcome"] == "deadline_exceeded"
        assert 1.4 <= took < 4
        assert record["reason"] == "kernel update"
        assert record["aborted"] == 4, record
        for engine in engines:
            until(lambda e=engine: e.three() == (0, 0, 0), 2, "nothing pending at the deadline")
            assert engine.worker.get_block_ids_with_load_errors() == set(blocks(2, first=20))
            assert engine.total("drains", trigger="gateway_draining") == 1
            assert engine.total("operations", kind="store", outcome="drained") == 1
            assert engine.total("operations", kind="retrieve", outcome="drained") == 1
            assert engine.total("operations", kind="store", outcome="refused") == 1
            until(lambda e=engine: gateway_three(daemon, e.engine_name()) == (0, 0, 0), what="the scrape follows")
        assert api.post("/v1/drain").status_code == 200  # drained already: the same drain
        assert drain_of(api)["id"] == record["id"]
        assert api.post("/v1/resume").status_code == 200
        assert api.post("/v1/resume").status_code == 200
        assert api.get("/readyz").status_code == 200
        for i, engine in enumerate(engines):
            engine.wait_healthy()
            assert engine.load("again", tokens(2, seed=i), blocks(2, first=40)) == set()
            assert engine.read(blocks(2, first=40)) == engine.read(blocks(2))
            engine.store_and_wait("after", tokens(1, seed=70 + i), blocks(1), seed=7)
    finally:
        for engine in engines:
            engine.close()


def test_a_drain_under_load_completes_and_admits_nothing_new(daemon, api):
    with Engine(daemon.run_dir, num_blocks=256) as engine:
        engine.wait_healthy()
        ended = threading.Event()

        def load() -> None:
            number = 0
            while not ended.is_set():
                until(lambda: engine.worker.snapshot().pending_stores < 8, 30, "room for one more store")
                number += 1
                engine.store(f"r{number}", tokens(4, seed=1000 + number), blocks(4, first=8 * (number % 30)))
                engine.worker.get_finished({f"r{number}"})
                ended.wait(0.002)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            until(lambda: engine.total("operations", kind="store", outcome="stored") > 20, what="load")
            assert api.post("/v1/drain", json={"deadline_seconds": 20}).status_code == 202
            assert api.get("/readyz").status_code == 503
            record = api.get("/v1/drain", params={"wait_seconds": 20}).json()
            assert record["outcome"] == "completed"
            assert record["remaining"] == {"operations": 0, "leases": 0, "dirty": 0}
            before = daemon.snapshot().slots.ready
            until(lambda: engine.total("operations", kind="store", outcome="refused") > 20, what="refusals under load")
            assert daemon.snapshot().slots.ready == before
            assert api.post("/v1/resume").status_code == 200
            stored = engine.total("operations", kind="store", outcome="stored")
            until(lambda: engine.total("operations", kind="store", outcome="stored") > stored + 20, what="load again")
        finally:
            ended.set()
            thread.join()
        assert engine.worker.wait_settled(10)
        assert engine.three() == (0, 0, 0)


def test_a_forced_drain_cuts_at_once(daemon, api):
    with Engine(daemon.run_dir) as engine:
        engine.wait_healthy()
        engine.store("held", tokens(1), blocks(1), FakeEvent())
        until(lambda: daemon.snapshot().slots.writing == 1)
        assert api.post("/v1/drain", json={"deadline_seconds": 0}).status_code in (200, 202)
        until(lambda: drain_of(api)["outcome"] == "forced", 2, "forced")
        until(lambda: engine.three() == (0, 0, 0), 2, "settled within a heartbeat or two")
        until(lambda: daemon.snapshot().slots.quarantined == 0, 5, "its ABORT freed the slot")


def test_a_cancelled_drain_leaves_granted_work_alone(daemon, api):
    with Engine(daemon.run_dir) as engine:
        engine.wait_healthy()
        event = FakeEvent()
        engine.store("held", tokens(1), blocks(1), event)
        until(lambda: daemon.snapshot().slots.writing == 1)
        api.post("/v1/drain", json={"deadline_seconds": 60})
        until(lambda: engine.worker.state is State.DRAINING)
        assert api.post("/v1/resume").status_code == 200
        assert drain_of(api)["outcome"] == "cancelled"
        engine.wait_healthy()
        event.fire()
        until(lambda: engine.total("operations", kind="store", outcome="stored") == 1)


def test_one_engine_is_drained_alone(daemon, api):
    with Engine(daemon.run_dir, name="one") as one, Engine(daemon.run_dir, name="two") as two:
        one.wait_healthy()
        two.wait_healthy()
        one.store("held", tokens(1), blocks(1), FakeEvent())
        until(lambda: daemon.snapshot().slots.writing == 1)
        assert api.post("/v1/engines/one/drain", json={"deadline_seconds": 0.5}).status_code in (200, 202)
        until(lambda: one.worker.state is State.DRAINING, 3, "the one is draining")
        until(lambda: one.three() == (0, 0, 0), 4, "by its deadline")
        assert two.worker.state is State.HEALTHY
        assert api.get("/readyz").status_code == 200
        two.store_and_wait("fine", tokens(1, seed=5), blocks(1), seed=5)
        assert api.post("/v1/engines/one/resume").status_code == 200
        one.wait_healthy()
        one.store_and_wait("fine", tokens(1, seed=6), blocks(1), seed=6)
        shown = api.get("/v1/engines/one").json()
        assert (shown["pending_stores"], shown["pending_retrieves"], shown["retained_events"]) == (0, 0, 0)


def test_a_failed_critical_check_does_the_same_at_once(daemon, api):
    with Engine(daemon.run_dir) as engine:
        engine.wait_healthy()
        engine.store("held", tokens(1), blocks(1), FakeEvent())
        until(lambda: engine.three() == (1, 0, 1))
        registered = engine.total("reconnects")
        with damaged_pool(daemon):
            until(lambda: engine.three() == (0, 0, 0), 5, "settled at once")
            assert engine.total("drains", trigger="gateway_unhealthy") == 1
            failing = api.get("/readyz")
            assert failing.status_code == 503
            assert "pool" in failing.text
            assert api.get("/v1/state").json()["health"] == "unhealthy"
        engine.wait_healthy()
        assert engine.total("reconnects") > registered  # it came back through registration
        engine.store_and_wait("after", tokens(1, seed=3), blocks(1), seed=3)
