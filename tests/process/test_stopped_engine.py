"""An engine stopped in the middle of a copy into a slot: the slot is nobody else's until it is proven dead."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import REPOSITORY, Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until

CHUNKS = 2
CHUNK_BYTES = 4096


@contextlib.contextmanager
def engine_process(daemon: Daemon, mode: str):
    """An engine in its own process; its lines of JSON are what it did."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.engine_process", str(daemon.run_dir), mode],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def fill_the_pool(daemon: Daemon, engine: Engine) -> dict[int, bytes]:
    """Store until every slot that may be used is; the bytes of each prompt."""
    stored: dict[int, bytes] = {}
    pool = daemon.snapshot().slots
    for seed in range(500, 500 + pool.pool_bytes // CHUNK_BYTES // 8 + 8):
        engine.store_and_wait(f"f{seed}", tokens(8, seed=seed), blocks(8), seed=seed)
        stored[seed] = engine.read(blocks(8))
    assert daemon.snapshot().slots.free_bytes < 8 * CHUNK_BYTES
    return stored


def check(engine: Engine, stored: dict[int, bytes], newest: int = 20) -> None:
    """What is found is right, to the byte; the newest are found."""
    for seed in list(stored)[-newest:]:
        assert engine.load(f"c{seed}", tokens(8, seed=seed), blocks(8, first=100)) == set()
        assert engine.read(blocks(8, first=100)) == stored[seed]


SMALL = {"KVGATE_POOL_SIZE": "2MiB", "KVGATE_SLAB_SIZE": "64KiB", "KVGATE_RESERVATION_SECONDS": "1"}


def test_a_half_written_slot_outlives_a_restart_and_a_full_pool():
    with Daemon(SMALL) as daemon:
        daemon.start()
        with engine_process(daemon, "stop-in-copy") as stopped:
            until(lambda: is_stopped(stopped.pid), 30, "it stopped in the middle of a copy")
            daemon.kill()
            daemon.start()
            until(lambda: daemon.snapshot().slots.quarantined == CHUNKS, 10, "its slots are quarantined")
            with Engine(daemon.run_dir, num_blocks=256) as other:
                other.wait_healthy()
                stored = fill_the_pool(daemon, other)
                assert daemon.snapshot().slots.quarantined == CHUNKS
                stopped.send_signal(signal.SIGCONT)
                assert json.loads(stopped.stdout.readline())["event"] == "copied"
                check(other, stored)
                assert other.hit("theirs", tokens(CHUNKS, seed=77)) == 0
                until(lambda: daemon.snapshot().slots.quarantined == 0, 15, "it came back holding nothing from before")
                check(other, stored)


def test_a_stopped_engine_that_is_killed_gives_its_slots_back():
    with Daemon(SMALL) as daemon:
        daemon.start()
        with engine_process(daemon, "stop-in-copy") as stopped:
            until(lambda: is_stopped(stopped.pid), 30, "it stopped in the middle of a copy")
            until(lambda: daemon.snapshot().slots.quarantined == CHUNKS, 10, "its reservation has run out")
            os.kill(stopped.pid, signal.SIGKILL)
            until(lambda: daemon.snapshot().slots.quarantined == 0, 1.5, "its slots are free")
            slots = daemon.snapshot().slots
            assert slots.ready + slots.writing == 0


def test_engines_killed_between_reserve_and_commit_leave_nothing_readable():
    with Daemon() as daemon, Engine(daemon.start().run_dir, name="bystander") as other:
        other.wait_healthy()
        other.store_and_wait("known", tokens(2, seed=1), blocks(2), seed=1)
        before = other.read(blocks(2))
        with engine_process(daemon, "breed") as breeder:
            for _ in range(20):
                print(file=breeder.stdin, flush=True)
                victim = int(breeder.stdout.readline())
                until(lambda pid=victim: is_stopped(pid), 30, "half written")
                assert daemon.snapshot().slots.writing == CHUNKS
                os.kill(victim, signal.SIGKILL)
                until(lambda: daemon.snapshot().slots.writing == 0, 1.5, "free again")
                slots = daemon.snapshot().slots
                assert (slots.ready, slots.quarantined) == (2, 0)
                assert other.hit("theirs", tokens(CHUNKS, seed=77)) == 0
        assert other.load("again", tokens(2, seed=1), blocks(2, first=10)) == set()
        assert other.read(blocks(2, first=10)) == before
        assert other.total("drains", trigger="unresponsive") == 0
        counted = {sample.name: sample.value for sample in daemon.snapshot().counters if not sample.labels}
        assert counted["engine_deaths"] >= 20
