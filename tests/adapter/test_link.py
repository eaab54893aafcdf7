"""The line to the gateway, against one that misbehaves."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from adapter import AdapterConfig, CacheIdentity, SchedulerAdapter, State
from adapter.link import REPLY_SECONDS
from gateway.lock import LockObserver, daemon_offset, party_offset
from gateway.wire.codes import ErrorCode, Health, Lifecycle
from gateway.wire.messages import DrainNotice, Error, Hello, Lookup, Ping, Register, Reserve, Unregister
from tests.adapter.scripted import ScriptedGateway
from tests.support.engine import CHUNK_TOKENS, Engine, blocks, tokens
from tests.support.poll import until

IDENTITY = CacheIdentity("tiny")


def quick(run_dir: Path, **settings) -> Engine:
    """An engine whose heartbeats are quick, so that tests are."""
    return Engine(run_dir, **{"heartbeat_seconds": 0.1, "lookup_timeout_seconds": 2.0, **settings})


def ready(run_dir: Path, **settings) -> Engine:
    return quick(run_dir, **settings).wait_healthy()


def stored(engine: Engine, request: str = "r") -> None:
    engine.store(request, tokens(2), blocks(2))
    assert engine.worker.wait_settled(20)


def test_hello_then_register_then_heartbeats(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        until(lambda: len(scripted.of(Ping)) > 6, what="heartbeats")
        party = engine.worker._link.party
        mine = [type(r) for r in scripted.received if getattr(r, "party", party) == party and type(r) is not Hello]
        assert mine.index(Register) < mine.index(Ping)
        register = next(r for r in scripted.of(Register) if r.party == party)
        assert (register.engine, register.model, register.pid) == ("engine", "tiny", os.getpid())
        assert register.chunk_bytes == 2 * 2 * CHUNK_TOKENS * 2 * 8 * 2
        assert register.chunk_tokens == CHUNK_TOKENS
        assert all(hello.boot == b"" for hello in scripted.of(Hello))
        assert all(r.boot == scripted.boot for r in scripted.received if not isinstance(r, Hello))
    assert len(scripted.of(Unregister)) == 2


def test_the_party_lock_is_held_before_hello_and_until_after_goodbye(scripted: ScriptedGateway) -> None:
    seen: list[bool] = []
    observer = LockObserver.open(scripted.run_dir / "pool")
    offsets: list[int] = []

    def look(request):
        seen.extend(observer.is_held(offset) for offset in offsets)
        return scripted.answer(request)

    with quick(scripted.run_dir) as engine:
        offsets.append(party_offset(engine.worker._link.party))
        scripted.answers[Hello] = scripted.answers[Register] = scripted.answers[Unregister] = look
        engine.wait_healthy()
    assert seen
    assert all(seen)
    assert not observer.is_held(offsets[0])
    observer.close()


def test_constructors_need_no_gateway_and_it_may_come_later(run_dir: Path) -> None:
    with quick(run_dir) as engine:
        assert engine.worker.state is State.CONNECTING
        assert not engine.worker.wait_healthy(0.05)
        engine.store("r", tokens(1), blocks(1))
        engine.retrieve("r", tokens(1), blocks(1, 8))
        assert engine.worker.get_finished(["r"]) == ({"r"}, {"r"})
        assert engine.worker.get_block_ids_with_load_errors() == {8, 9}
        assert engine.worker.get_failed_request_ids() == {"r"}
        assert engine.scheduler.lookup("r", tokens(1), timeout_seconds=5) == 0
        assert engine.total("operations", kind="store", outcome="refused") == 1
        with ScriptedGateway(run_dir):
            engine.wait_healthy()


def test_a_missing_run_dir_is_looked_for_again(tmp_path: Path) -> None:
    later = tmp_path / "later"
    with quick(later) as engine:
        later.mkdir()
        with ScriptedGateway(later):
            engine.wait_healthy()


def test_heartbeats_run_from_registration_on_without_any_work(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        until(lambda: len([p for p in scripted.of(Ping) if p.party == engine.worker._link.party]) >= 5)
        until(lambda: len([p for p in scripted.of(Ping) if p.party == engine.scheduler._link.party]) >= 5)
        assert engine.worker.state is State.HEALTHY


def test_a_silent_gateway_is_unresponsive_and_its_late_replies_are_counted(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.silence(Ping, Hello, Reserve)
        engine.store("r", tokens(2), blocks(2))
        until(lambda: engine.worker.state is State.UNRESPONSIVE, 10)
        assert engine.worker.get_finished(["r"]) == ({"r"}, set())
        assert engine.worker.snapshot().pending_stores == 0
        assert engine.worker._link.num_waiting <= 3, "HELLOs alone"
        scripted.answers.clear()
        engine.wait_healthy()
        assert engine.total("drains", trigger="unresponsive") == 1
        assert engine.total("reconnects") == 1
        assert engine.total("gateway_flaps") == 1
    assert [r.boot for r in scripted.of(Register)] == [scripted.boot] * 4


def test_a_restart_between_two_heartbeats_is_noticed_and_settles(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.silence(Reserve)
        engine.store("r", tokens(2), blocks(2))
        until(lambda: scripted.of(Reserve))
        old = scripted.boot
        scripted.restart_unseen()
        until(lambda: engine.worker.get_finished(["r"])[0] == {"r"})
        scripted.knows_parties = True
        until(lambda: engine.worker.snapshot().boot_id == scripted.boot.hex())
        engine.wait_healthy()
        assert scripted.boot != old
        assert engine.total("drains", trigger="restarted") == 1
        assert engine.total("late_replies") >= 1
        last = [r for r in scripted.of(Register) if r.party == engine.worker._link.party][-1]
        assert last.boot == scripted.boot
        assert last.holds_nothing


def test_wrong_boot_settles_as_restarted(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.boot = b"N" * 16
        scripted.answers[Ping] = lambda request: (
            scripted.answer(request)
            if request.boot == scripted.boot
            else Error(number=0, boot=b"", code=ErrorCode.WRONG_BOOT, message="another boot")
        )
        until(lambda: engine.worker.snapshot().boot_id == scripted.boot.hex())
        engine.wait_healthy()
        assert engine.total("drains", trigger="restarted") == 1


def test_an_unknown_party_registers_again(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.knows_parties = False
        until(lambda: engine.total("drains", trigger="restarted") >= 1)
        scripted.knows_parties = True
        engine.wait_healthy()
        assert engine.total("reconnects") >= 1


@pytest.mark.parametrize("state", [Lifecycle.DRAINING, Lifecycle.DRAINED])
def test_a_draining_gateway_gets_no_new_work_and_resumes_through_registration(
    scripted: ScriptedGateway, state: Lifecycle
) -> None:
    with ready(scripted.run_dir) as engine:
        registrations = len(scripted.of(Register))
        scripted.drain = DrainNotice(id="d", deadline=time.monotonic() + 60)
        scripted.state = state
        until(lambda: engine.worker.state is State.DRAINING)
        until(lambda: engine.scheduler.state is State.DRAINING)
        engine.store("r", tokens(1), blocks(1))
        assert engine.worker.get_finished(["r"])[0] == {"r"}
        assert engine.scheduler.lookup("r", tokens(1)) == 0
        assert not scripted.of(Reserve)
        assert not scripted.of(Lookup)
        assert engine.total("drains", trigger="gateway_draining") == 1
        scripted.state, scripted.drain = Lifecycle.READY, None
        engine.wait_healthy()
        assert len(scripted.of(Register)) == registrations + 2
        assert engine.scheduler.lookup("r", tokens(1)) == CHUNK_TOKENS


def test_an_unhealthy_gateway_settles_at_once(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.silence(Reserve)
        engine.store("r", tokens(2), blocks(2))
        scripted.health = Health.UNHEALTHY
        until(lambda: engine.worker.state is State.UNHEALTHY)
        assert engine.worker.wait_settled(1)
        assert engine.total("drains", trigger="gateway_unhealthy") == 1
        scripted.health = Health.DEGRADED
        engine.wait_healthy()


def test_a_starting_gateway_is_waited_for(scripted: ScriptedGateway) -> None:
    scripted.state = Lifecycle.STARTING
    with quick(scripted.run_dir) as engine:
        until(lambda: len(scripted.of(Hello)) > 3)
        assert engine.worker.state is State.CONNECTING
        assert not scripted.of(Register)
        scripted.state = Lifecycle.READY
        engine.wait_healthy()


def test_another_protocol_is_incompatible_and_no_error(scripted: ScriptedGateway, caplog) -> None:
    scripted.answers[Hello] = lambda _: Error(
        number=0, boot=b"", code=ErrorCode.INCOMPATIBLE, message="we speak 7, you speak 1"
    )
    with quick(scripted.run_dir) as engine, caplog.at_level(logging.WARNING, "kvgate.adapter"):
        until(lambda: engine.worker.state is State.INCOMPATIBLE)
        until(lambda: engine.scheduler.state is State.INCOMPATIBLE)
        assert engine.scheduler.lookup("r", tokens(1)) == 0
        assert "we speak 7, you speak 1" in caplog.text


def test_a_refused_registration_is_said_once_and_tried_again(scripted: ScriptedGateway, caplog) -> None:
    scripted.answers[Register] = lambda _: Error(
        number=0, boot=b"", code=ErrorCode.LOCK_NOT_HELD, message="locks do not work across these rooms"
    )
    with caplog.at_level(logging.WARNING, "kvgate.adapter"), quick(scripted.run_dir) as engine:
        until(lambda: len(scripted.of(Register)) > 6)
        assert engine.worker.state is State.CONNECTING
        assert caplog.text.count("locks do not work") == 2, "once a half"
        del scripted.answers[Register]
        engine.wait_healthy()


def test_a_swallowed_registration_is_tried_again_and_close_is_prompt(scripted: ScriptedGateway) -> None:
    scripted.silence(Register)
    engine = quick(scripted.run_dir)
    until(lambda: len(scripted.of(Register)) > 4)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 2


def test_replies_that_cannot_be_read_end_their_request_as_such(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.answers[Reserve] = lambda request: msgspec.msgpack.encode(
            {"type": "RESERVED", "number": request.number}
        )
        began = time.monotonic()
        stored(engine)
        assert time.monotonic() - began < REPLY_SECONDS, "at once, not when it timed out"
        scripted.answers[Lookup] = lambda _: Error(number=0, boot=b"", code=ErrorCode.INTERNAL, message="a fault")
        assert engine.scheduler.lookup("q", tokens(1)) == 0
        until(lambda: reasons(scripted) == ["bad_reply"])
        assert engine.worker.state is State.HEALTHY


def test_garbage_from_the_gateway_harms_nobody(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        scripted.answers[Ping] = lambda _: b"\xc1 not msgpack"
        until(lambda: engine.total("late_replies") >= 2)
        del scripted.answers[Ping]
        engine.wait_healthy()


def reasons(gateway: ScriptedGateway) -> list[str]:
    """Why operations ended, as heartbeats told it."""
    return [str(info.reason) for ping in gateway.of(Ping) if ping.stats for info in ping.stats.settled]


def test_late_grants_bring_a_heartbeat_that_gives_them_back(scripted: ScriptedGateway) -> None:
    held: list[Reserve] = []
    scripted.answers[Reserve] = held.append
    settings = {"heartbeat_seconds": 5, "operation_deadline_seconds": 0.2}
    with ready(scripted.run_dir, **settings) as engine:
        number = engine.store("r", tokens(1), blocks(1))
        assert engine.worker.wait_settled(10)
        pings = len(scripted.of(Ping))
        scripted.answers[Ping] = lambda request: scripted.answer(held[0])  # under the PING's number: a late grant
        engine.worker._link.post(lambda: engine.worker._link._liveness.ping_soon(time.monotonic()))
        until(lambda: len(scripted.of(Ping)) > pings)
        late = scripted.of(Ping)[-1]
        assert late.next_operation > number
        assert late.operations == ()


def test_a_thousand_lookups_that_time_out_leave_nothing(scripted: ScriptedGateway) -> None:
    scripted.silence(Lookup)
    settings = {"lookup_timeout_seconds": 0.2}
    with ready(scripted.run_dir, **settings) as engine:
        scheduler = engine.scheduler
        for i in range(1000):
            scheduler.maybe_submit_lookup_request(f"r{i}", tokens(1, i))
        until(lambda: all(scheduler.check_lookup_result(f"r{i}") == 0 for i in range(1000)))
        until(lambda: scheduler._link.num_waiting <= 1, what="nothing waits but a heartbeat")
        assert scheduler._lookups.num_unanswered == 0
        assert scheduler.check_lookup_result("r0") == 0


def test_a_pool_that_was_replaced_is_attached_to_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with ScriptedGateway(run) as first, ready(run) as engine:
        run.rename(tmp_path / "old")
        run.mkdir()
        with ScriptedGateway(run) as second:
            until(lambda: engine.worker.snapshot().boot_id == second.boot.hex(), 20)
            engine.wait_healthy()
            assert engine.total("drains", trigger="restarted") == 1
            stored(engine)
            assert engine.total("operations", kind="store", outcome="stored") == 1, "into the new pool: it was mapped"
            assert second.of(Reserve)
            assert not first.of(Reserve)


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 107"):
        SchedulerAdapter(tmp_path / ("x" * 120), IDENTITY, "g")


def test_close_with_a_dead_gateway_is_prompt_and_repeatable(run_dir: Path) -> None:
    gateway = ScriptedGateway(run_dir)
    engine = ready(run_dir)
    gateway.close()
    began = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - began < 2
    assert engine.worker.state is State.CLOSED
    engine.retrieve("r", tokens(1), blocks(1, 4))
    assert engine.worker.get_finished() == (set(), {"r"})
    assert engine.worker.get_block_ids_with_load_errors() == {4, 5}
    assert engine.scheduler.lookup("r", tokens(1)) == 0


def test_close_with_a_gateway_that_does_not_answer_is_prompt(scripted: ScriptedGateway) -> None:
    engine = ready(scripted.run_dir)
    scripted.silence(Unregister, Ping)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 2
    assert len(scripted.of(Unregister)) == 2


def test_a_dead_gateway_is_seen_by_its_lock(run_dir: Path) -> None:
    gateway = ScriptedGateway(run_dir)
    with ready(run_dir, heartbeat_seconds=30) as engine:
        gateway.close()
        until(lambda: engine.worker.state is State.DEAD, 2, "long before a heartbeat was missed")
        assert engine.worker.registry.get_sample_value("kvgate_adapter_gateway_state", {"state": "dead"}) == 1


def test_a_forked_child_cannot_use_the_adapter_and_does_the_parent_no_harm(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir) as engine:
        observer = LockObserver.open(scripted.run_dir / "pool")
        offset = party_offset(engine.worker._link.party)
        reading, writing = os.pipe()
        with engine.worker._link.lock, engine.scheduler._link.lock:  # as a thread would that the child does not have
            child = _fork(engine, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert told.count("belongs to process") == told.count("\n") == 8, told
        assert observer.is_held(offset)
        stored(engine)
        assert engine.worker.state is State.HEALTHY
    assert not observer.is_held(offset), "the child kept no copy of the lock"
    observer.close()


def _fork(engine: Engine, writing: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        calls = [
            lambda: engine.store("r", tokens(1), blocks(1)),
            engine.worker.get_finished,
            engine.worker.snapshot,
            engine.worker.close,
            lambda: engine.scheduler.lookup("r", tokens(1)),
            engine.scheduler.close,
            engine.worker.readings,
            engine.scheduler.readings,
        ]
        generate_latest(engine.worker.registry)
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                os.write(writing, f"{error}\n".encode())
        status = 0
    finally:
        os._exit(status)


def test_ids_do_not_depend_on_the_process_id(scripted: ScriptedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    adapters = [
        SchedulerAdapter(scripted.run_dir, IDENTITY, "g", AdapterConfig(heartbeat_seconds=0.1)) for _ in range(2)
    ]
    try:
        assert all(adapter.wait_healthy(10) for adapter in adapters)
        registered = scripted.of(Register)
        assert {r.pid for r in registered} == {4711}
        assert len({r.party for r in registered}) == 2
    finally:
        for adapter in adapters:
            adapter.close()


def test_the_daemon_offset_is_watched_not_taken(scripted: ScriptedGateway) -> None:
    with ready(scripted.run_dir):
        observer = LockObserver.open(scripted.run_dir / "pool")
        assert observer.is_held(daemon_offset())
        observer.close()


def test_requests_have_a_deadline_below_three_seconds() -> None:
    assert REPLY_SECONDS < 3


def test_no_adapter_runs_in_the_background_after_an_interpreter_ends(scripted: ScriptedGateway) -> None:
    """An engine that forgets to close still exits, and its lock ends with it."""
    code = (
        "import sys\nfrom adapter import SchedulerAdapter, CacheIdentity\n"
        "s = SchedulerAdapter(sys.argv[1], CacheIdentity('m'), 'g')\nassert s.wait_healthy(20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(scripted.run_dir)], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    party = scripted.of(Register)[0].party
    observer = LockObserver.open(scripted.run_dir / "pool")
    assert not observer.is_held(party_offset(party))
    observer.close()
