"""A daemon killed under load, again and again: every committed chunk comes back, and engines resume by themselves."""

import threading

from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until


def test_ten_times_killed_under_load_ten_times_back_with_everything():
    with Daemon({"KVGATE_POOL_SIZE": "64MiB", "KVGATE_VERIFY": ""}) as daemon, Engine(daemon.start().run_dir) as engine:
        engine.wait_healthy()
        stored: dict[int, bytes] = {}
        next_seed = 1
        for _ in range(10):
            ended = threading.Event()
            made: dict[int, bytes] = {}
            thread = threading.Thread(target=store_prompts, args=(engine, next_seed, made, ended))
            thread.start()
            until(lambda m=made: len(m) >= 5, what="load")
            daemon.kill()
            ended.set()
            thread.join()
            next_seed += 1000
            stored.update(made)
            daemon.start()
            engine.wait_healthy()
            recovered = scrape.value(scrape.of_gateway(daemon.admin_url), "kvgate_recovered_chunks")
            assert recovered >= 2 * len(stored)
            for seed, written in made.items():
                assert engine.load(f"c{seed}", tokens(2, seed=seed), blocks(2, first=20)) == set()
                assert engine.read(blocks(2, first=20)) == written
        for seed, written in stored.items():
            assert engine.load(f"e{seed}", tokens(2, seed=seed), blocks(2, first=20)) == set()
            assert engine.read(blocks(2, first=20)) == written
        until(lambda: engine.three() == (0, 0, 0), what="at rest nothing is pending or retained")
        until(
            lambda: daemon.snapshot().slots.writing + daemon.snapshot().slots.quarantined == 0,
            what="nothing half written",
        )


def store_prompts(engine: Engine, first_seed: int, made: dict[int, bytes], ended: threading.Event) -> None:
    """Store one prompt after another; ``made`` gets the bytes of those that the gateway said it has."""
    seed = first_seed
    while not ended.is_set():
        engine.fill(blocks(2), seed)
        written = engine.read(blocks(2))
        before = engine.total("operations", kind="store", outcome="stored")
        engine.store(f"r{seed}", tokens(2, seed=seed), blocks(2))
        engine.worker.wait_settled(10)
        if engine.total("operations", kind="store", outcome="stored") == before + 1:
            made[seed] = written
        engine.worker.get_finished({f"r{seed}"})
        seed += 1
