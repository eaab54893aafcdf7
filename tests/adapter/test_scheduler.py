"""The scheduler half: keys, lookups, leases."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adapter import AdapterConfig, CacheIdentity, Geometry, Pending, SchedulerAdapter, State
from adapter.geometry import LayerGeometry
from adapter.link import MAX_CALLS_LEFT
from gateway.wire.codes import ErrorCode, Health
from gateway.wire.messages import EndSession, Error, Found, Lookup, Ping, Release
from tests.adapter.scripted import ScriptedGateway
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until

IDENTITY = CacheIdentity("tiny", block_tokens=16, chunk_tokens=32)
GEOMETRY = Geometry("NHD", "bfloat16", 64, (LayerGeometry(2, 512), LayerGeometry(2, 512)))
CHUNK = IDENTITY.chunk_tokens

#: Of 100 tokens from 0 on with chunks of 32, salt "tenant" and one extra key. Stored bytes are found by it, so it
#: never changes.
GOLDEN = "8c5674fc3b63b41b0764eac4d2aac676c380c6c65d8e4fda52e5f45c4d0afbf3"
PRINT_KEYS = (
    "import sys\nfrom adapter import CacheIdentity, SchedulerAdapter\n"
    "s = SchedulerAdapter(sys.argv[1], CacheIdentity('tiny', chunk_tokens=32), 'g')\n"
    "print(s.chunk_keys('r', list(range(100)), 'tenant', [None, b'lora', None])[-1].hex())\ns.close()\n"
)


class Half:
    """A scheduler half on a scripted gateway."""

    def __init__(self, run_dir: Path, **settings) -> None:
        config = AdapterConfig(**{"heartbeat_seconds": 0.1, "lookup_timeout_seconds": 5.0, **settings})
        self.adapter = SchedulerAdapter(run_dir, IDENTITY, "g", config)

    def __enter__(self) -> SchedulerAdapter:
        self.adapter.set_geometry(GEOMETRY)
        assert self.adapter.wait_healthy(20)
        return self.adapter

    def __exit__(self, *_) -> None:
        self.adapter.close()


def value(adapter: SchedulerAdapter, name: str, **labels: str) -> float | None:
    return adapter.registry.get_sample_value(f"kvgate_adapter_{name}", labels)


@pytest.mark.parametrize("seed", ["0", "1", "2", "3", "random"])
def test_keys_are_the_same_in_every_process(run_dir: Path, seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_KEYS, str(run_dir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == GOLDEN


def test_salt_and_extra_keys_keep_entries_apart(daemon: Daemon) -> None:
    prompt = tokens(2)
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", prompt, blocks(2), seed=1)
        scheduler = engine.scheduler
        assert scheduler.lookup("a", prompt, timeout_seconds=5) == len(prompt)
        assert scheduler.lookup("b", prompt, "tenant", timeout_seconds=5) == 0
        assert scheduler.lookup("c", prompt, "", [None, b"image"], timeout_seconds=5) == 32
        assert scheduler.lookup("d", prompt, "", [None, None], timeout_seconds=5) == len(prompt)


def test_identities_keep_entries_apart(daemon: Daemon) -> None:
    prompt = tokens(1)
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", prompt, blocks(1), seed=1)
        layouts = {"layout": "HND"}, {"dtype": "float16"}
        identity = {"block_tokens": 16, "chunk_tokens": 32}
        others = [(CacheIdentity("tiny", dtype="uint8", **identity), {})]
        others += [(CacheIdentity("tiny", revision="2", **identity), {})]
        others += [(CacheIdentity("tiny", dtype=c.get("dtype", "bfloat16"), **identity), c) for c in layouts]
        for identity, change in others:
            geometry = Geometry(**{**_fields(engine.worker.geometry), **change})
            scheduler = SchedulerAdapter(daemon.run_dir, identity, "g2", AdapterConfig(heartbeat_seconds=0.2))
            try:
                scheduler.set_geometry(geometry)
                assert scheduler.wait_healthy(20)
                assert scheduler.lookup("x", prompt, timeout_seconds=5) == 0
            finally:
                scheduler.close()


def _fields(geometry: Geometry) -> dict[str, object]:
    return {name: getattr(geometry, name) for name in geometry.__struct_fields__}


def test_lookups_are_0_before_the_geometry(scripted: ScriptedGateway) -> None:
    half = Half(scripted.run_dir)
    assert half.adapter.wait_healthy(20)
    assert half.adapter.lookup("r", tokens(1)) == 0
    half.adapter.set_geometry(GEOMETRY)
    assert half.adapter.lookup("r", tokens(1)) == CHUNK
    half.adapter.close()


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry("NHD", "bfloat16", 64, ()), "0 layers"),
        (Geometry("NHD", "bfloat16", 64, (LayerGeometry(2, 513),)), "multiple of block_tokens"),
        (Geometry("NHD", "float32", 64, (LayerGeometry(2, 512),)), "float32"),
    ],
)
def test_a_geometry_that_does_not_fit_is_refused(run_dir: Path, geometry: Geometry, message: str) -> None:
    half = Half(run_dir)
    with pytest.raises(ValueError, match=message):
        half.adapter.set_geometry(geometry)
    half.adapter.close()


def test_a_lookup_is_pending_then_a_number(scripted: ScriptedGateway) -> None:
    answers: list[Lookup] = []
    scripted.answers[Lookup] = answers.append
    with Half(scripted.run_dir) as scheduler:
        scheduler.maybe_submit_lookup_request("r", tokens(3))
        assert scheduler.check_lookup_result("r") is Pending.PENDING
        until(lambda: answers)
        assert scheduler.check_lookup_result("r") is Pending.PENDING
    assert len(answers[0].keys) == 3
    assert scheduler.check_lookup_result("r") == 0


def test_waiting_for_a_result_ends_with_it_or_with_the_time(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        scheduler.maybe_submit_lookup_request("r", tokens(3))
        assert scheduler.wait_lookup_result("r", 5.0) == 3 * CHUNK
        scripted.silence(Lookup)
        scheduler.maybe_submit_lookup_request("s", tokens(3))
        assert scheduler.wait_lookup_result("s", 0.01) is Pending.PENDING, "its own deadline is later"
        assert scheduler.wait_lookup_result("nobody", 5.0) == 0


def test_a_partial_last_chunk_is_dropped(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        assert scheduler.lookup("r", tokens(2)[:-1]) == CHUNK
        assert scheduler.lookup("s", tokens(1)[:-1]) == 0
        assert value(scheduler, "prompt_tokens_total") == 4 * 0 + 63 + 31


def test_repeating_a_lookup_asks_nothing_and_more_tokens_are_a_new_one(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        for _ in range(5):
            assert scheduler.lookup("r", tokens(2)) == 2 * CHUNK
        assert len(scripted.of(Lookup)) == 1
        assert scheduler.lookup("r", tokens(3)) == 3 * CHUNK
        first, second = scripted.of(Lookup)
        assert second.session > first.session
        until(lambda: [end.session for end in scripted.of(EndSession)] == [first.session])
        assert value(scheduler, "prompt_tokens_total") == 2 * CHUNK, "each request once"
        assert value(scheduler, "lookup_wait_seconds_count") == 2


def test_a_number_is_good_only_while_its_lease_lives_and_heartbeats_renew_it(scripted: ScriptedGateway) -> None:
    scripted.lease_seconds = 0.5
    with Half(scripted.run_dir) as scheduler:
        scheduler.lookup("r", tokens(2))
        session = scripted.of(Lookup)[0].session
        until(lambda: sum(session in ping.sessions for ping in scripted.of(Ping)) > 8, what="renewals beyond 0.5 s")
        assert scheduler.check_lookup_result("r") == 2 * CHUNK
        scripted.answers[Ping] = lambda request: _without_sessions(scripted, request)
        until(lambda: scheduler.check_lookup_result("r") == 0, 20, "the lease ended")


def _without_sessions(gateway: ScriptedGateway, request: Ping):
    import msgspec

    return msgspec.structs.replace(gateway.answer(request), sessions=())


def test_a_lookup_that_timed_out_is_0_and_its_session_ended(scripted: ScriptedGateway) -> None:
    scripted.silence(Lookup)
    with Half(scripted.run_dir, lookup_timeout_seconds=0.1) as scheduler:
        began = time.monotonic()
        assert scheduler.lookup("r", tokens(1)) == 0
        assert time.monotonic() - began < 2
        assert scheduler.check_lookup_result("r") == 0
        session = scripted.of(Lookup)[0].session
        until(lambda: session in [end.session for end in scripted.of(EndSession)])


def test_a_late_answer_is_ignored_and_counted(scripted: ScriptedGateway) -> None:
    asked: list[Lookup] = []
    scripted.answers[Lookup] = asked.append
    with Half(scripted.run_dir, lookup_timeout_seconds=0.1) as scheduler:
        assert scheduler.lookup("r", tokens(2)) == 0
        late = asked[0]
        scripted.answers[EndSession] = lambda _: Found(
            number=late.number, boot=b"", chunks=2, lease_deadline=time.monotonic() + 10
        )
        until(lambda: value(scheduler, "late_replies_total") == 1)
        assert scheduler.check_lookup_result("r") == 0
        assert value(scheduler, "wasted_tokens_total", reason="lookup_timeout") == 2 * CHUNK


@pytest.mark.parametrize("chunks", [-1, 3])
def test_an_impossible_answer_is_a_miss(scripted: ScriptedGateway, chunks: int) -> None:
    scripted.answers[Lookup] = lambda _: Found(number=0, boot=b"", chunks=chunks, lease_deadline=time.monotonic() + 10)
    with Half(scripted.run_dir) as scheduler:
        assert scheduler.lookup("r", tokens(2)) == 0


def test_a_refused_lookup_is_a_miss(scripted: ScriptedGateway) -> None:
    scripted.answers[Lookup] = lambda _: Error(number=0, boot=b"", code=ErrorCode.LIMIT, message="full")
    with Half(scripted.run_dir) as scheduler:
        assert scheduler.lookup("r", tokens(2)) == 0


def test_release_gives_back_whole_chunks_of_the_range(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        scheduler.lookup("r", tokens(8))
        session = scripted.of(Lookup)[0].session
        scheduler.release_lookup("r", 5 * CHUNK - 1, 8 * CHUNK)
        until(lambda: scripted.of(Release))
        release = scripted.of(Release)[0]
        assert (release.session, release.start, release.end) == (session, 5, 8)
        assert scheduler.check_lookup_result("r") == 5 * CHUNK
        scheduler.release_lookup("r")
        scheduler.release_lookup("r")
        scheduler.release_lookup("nobody")
        until(lambda: [end.session for end in scripted.of(EndSession)] == [session])
        assert scheduler.check_lookup_result("r") == 0
        assert value(scheduler, "wasted_tokens_total", reason="released") == 8 * CHUNK


def test_what_was_loaded_is_given_back_and_not_counted_as_wasted(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        scheduler.lookup("r", tokens(8))
        session = scripted.of(Lookup)[0].session
        scheduler.release_lookup("r", end=2 * CHUNK)
        scheduler.end_lookup("r")
        scheduler.end_lookup("r")
        until(lambda: [end.session for end in scripted.of(EndSession)] == [session])
        assert scheduler.check_lookup_result("r") == 0
        assert value(scheduler, "wasted_tokens_total", reason="released") == 2 * CHUNK


def test_end_session_ends_it_once_and_may_be_repeated(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        scheduler.lookup("r", tokens(1))
        for _ in range(3):
            scheduler.end_session("r")
        scheduler.end_session("nobody")
        until(lambda: scripted.of(EndSession))
        assert scheduler.check_lookup_result("r") == 0
        assert scheduler.lookup("r", tokens(1)) == CHUNK
        assert len(scripted.of(EndSession)) == 1


def test_sessions_are_ended_however_busy_the_engine_looks_up(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        for i in range(3 * MAX_CALLS_LEFT):
            assert scheduler.lookup(f"r{i}", tokens(1)) == CHUNK
            scheduler.end_session(f"r{i}")
            assert len(scripted.of(EndSession)) >= i - MAX_CALLS_LEFT
        until(lambda: len(scripted.of(EndSession)) == 3 * MAX_CALLS_LEFT, 1.0, "the link thread tells the rest")


def test_reset_is_at_once_and_nothing_from_before_hits(daemon: Daemon) -> None:
    prompt = tokens(2)
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", prompt, blocks(2), seed=1)
        assert engine.scheduler.lookup("a", prompt, timeout_seconds=5) == len(prompt)
        assert engine.scheduler.reset() is True
        assert engine.scheduler.check_lookup_result("a") == 0
        assert engine.scheduler.lookup("a", prompt, timeout_seconds=5) == 0
        assert engine.scheduler.reset() is True


def test_reset_needs_no_gateway(run_dir: Path) -> None:
    half = Half(run_dir)
    keys = half.adapter.chunk_keys("r", tokens(1))
    assert half.adapter.reset() is True
    assert half.adapter.chunk_keys("r", tokens(1)) != keys
    half.adapter.close()


def test_a_daemon_that_dies_voids_every_promise(daemon: Daemon) -> None:
    prompt = tokens(2)
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", prompt, blocks(2), seed=1)
        assert engine.scheduler.lookup("a", prompt, timeout_seconds=5) == len(prompt)
        daemon.kill()
        until(lambda: engine.scheduler.state is State.DEAD, 5)
        assert engine.scheduler.check_lookup_result("a") == 0
        daemon.start()
        engine.wait_healthy(20)
        assert engine.scheduler.check_lookup_result("a") == 0, "leases of the dead boot"
        assert engine.scheduler.lookup("a", prompt, timeout_seconds=5) == len(prompt), "the chunks came back warm"


def test_values_that_make_no_sense_raise_and_change_nothing(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        with pytest.raises(ValueError, match="token ids"):
            scheduler.lookup("r", [-1] * CHUNK)
        with pytest.raises(ValueError, match="extra_keys"):
            scheduler.maybe_submit_lookup_request("r", tokens(2), "", [None])
        assert scheduler.check_lookup_result("r") == 0
        assert not scripted.of(Lookup)
        assert value(scheduler, "prompt_tokens_total") == 0


def test_the_snapshot_of_a_scheduler_half(scripted: ScriptedGateway) -> None:
    with Half(scripted.run_dir) as scheduler:
        snapshot = scheduler.snapshot()
        assert (snapshot.state, snapshot.boot_id) == (State.HEALTHY, scripted.boot.hex())
        assert (snapshot.pending_stores, snapshot.operations) == (0, ())


def test_heartbeats_go_on_while_a_caller_waits_for_its_answer(scripted: ScriptedGateway) -> None:
    """Who waits in a lookup does the link thread's work: all of it."""
    scripted.answers[Lookup] = lambda _: None
    with Half(scripted.run_dir) as scheduler:
        before = sum(isinstance(request, Ping) for request in scripted.received)
        assert scheduler.lookup("r", tokens(2), timeout_seconds=1.0) == 0
        assert sum(isinstance(request, Ping) for request in scripted.received) >= before + 5
        assert scheduler.state is State.HEALTHY


def test_lookups_on_two_threads_wait_at_the_same_time(scripted: ScriptedGateway) -> None:
    """One of them has the link's turn; the other is answered no later for it."""
    both_asked = threading.Barrier(2)
    scripted.answers[Lookup] = lambda _: None
    found: dict[str, int] = {}

    with Half(scripted.run_dir) as scheduler:

        def look_up(request: str) -> None:
            both_asked.wait(5)
            found[request] = scheduler.lookup(request, tokens(2), timeout_seconds=20)

        threads = [threading.Thread(target=look_up, args=(request,)) for request in ("a", "b")]
        for thread in threads:
            thread.start()
        until(lambda: sum(isinstance(one, Lookup) for one in scripted.received) == 2, what="both lookups")
        scripted.health = Health.UNHEALTHY  # neither is answered: a heartbeat ends both
        for thread in threads:
            thread.join(5)
        assert found == {"a": 0, "b": 0}


def test_who_has_the_turn_does_the_link_threads_work(scripted: ScriptedGateway) -> None:
    """A lookup is sent and its answer read on the thread that waits for it: two changes of thread less."""
    with Half(scripted.run_dir) as scheduler:
        link = scheduler._link

        def worked_here() -> bool:
            workers: list[int] = []
            with link.turn(5) as wait_for:
                link.post(lambda: workers.append(threading.get_ident()))
                assert wait_for(lambda: bool(workers), 5)
            return workers == [threading.get_ident()]

        until(worked_here, what="the turn, which the link thread may just have")  # it has it for a moment each 50 ms
