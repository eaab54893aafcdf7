"""A core that is stopped, not dead: engines go on at once, and nothing it does when it wakes can harm."""

import signal

from adapter import State
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until


def test_engines_settle_reuse_their_blocks_and_never_see_overwritten_bytes():
    with Daemon() as daemon, Engine(daemon.start().run_dir, num_blocks=128) as engine:
        engine.wait_healthy()
        known = tokens(2, seed=1)
        engine.store_and_wait("known", known, blocks(2), seed=1)
        before = engine.read(blocks(2))
        engine.fill(blocks(2, first=10), seed=2)
        waiting = tokens(2, seed=2)
        events = [FakeEvent() for _ in range(3)]
        engine.store("granted", waiting, blocks(2, first=10), events[0])
        engine.retrieve("loading", known, blocks(2, first=20), events[1])
        until(lambda: daemon.snapshot().slots.writing == 2, what="granted")
        daemon.pause()
        asked = tokens(2, seed=3)
        engine.store("asked", asked, blocks(2, first=30), events[2])  # its RESERVE lies in the stopped core's queue
        until(lambda: engine.worker.state is State.UNRESPONSIVE, 3.5 * 0.2 + 1, "within three heartbeats")
        until(lambda: engine.three() == (0, 0, 0), 0.5, "settled at once")
        assert engine.worker.get_finished({"granted", "asked"}) == ({"granted", "asked"}, {"loading"})
        assert engine.worker.get_finished({"granted", "asked"}) == (set(), set())
        assert engine.worker.get_block_ids_with_load_errors() == set(blocks(2, first=20))
        engine.fill(blocks(2, first=10), seed=66)  # the blocks are ours again
        engine.fill(blocks(2, first=30), seed=67)
        for event in events:
            event.fire()
        assert engine.hit("while-stopped", known) == 0
        daemon.go_on()
        engine.wait_healthy()
        assert engine.hit("granted", waiting) == 0
        assert engine.hit("asked", asked) == 0
        assert engine.load("known-again", known, blocks(2, first=40)) == set()
        assert engine.read(blocks(2, first=40)) == before
        until(lambda: daemon.snapshot().slots.writing + daemon.snapshot().slots.quarantined == 0, what="slots are free")
        assert engine.total("drains", trigger="unresponsive") == 1


def test_a_stopped_core_is_killed_by_the_watchdog_and_serve_says_why():
    with Daemon({"KVGATE_WATCHDOG_SECONDS": "1.5"}) as daemon, Engine(daemon.start().run_dir) as engine:
        engine.wait_healthy()
        engine.store("held", tokens(1), blocks(1), FakeEvent())
        daemon.pause()
        assert daemon.wait(20) == -signal.SIGKILL
        until(lambda: engine.worker.state is State.DEAD, 5, "hung became dead")
        assert engine.three() == (0, 0, 0)
        assert "watchdog" in daemon.stderr
        until(lambda: not daemon.processes(), 10, "the admin process went too")
        daemon.start()
        engine.wait_healthy()
