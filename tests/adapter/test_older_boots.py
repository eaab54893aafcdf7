"""What an adapter still holds of an older boot or an older pool, and what it must not do before that is over."""

import threading
from pathlib import Path

from adapter import State, WorkerAdapter
from gateway.lock import LockObserver, party_offset
from gateway.wire.messages import Hello, Register
from tests.adapter.held import HeldCopy
from tests.adapter.scripted import ScriptedGateway
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until


def copying(run_dir: Path, held: HeldCopy) -> Engine:
    """An engine one of whose copies runs, and goes on running."""
    engine = Engine(run_dir, copy=held, heartbeat_seconds=0.1).wait_healthy()
    engine.store("r", tokens(1), blocks(1))
    assert held.begun.wait(20)
    return engine


def registrations(gateway: ScriptedGateway, party: bytes) -> list[Register]:
    """Of this party, meant for this boot."""
    return [one for one in gateway.of(Register) if one.party == party and one.boot == gateway.boot]


def let_two_rounds_pass(worker: WorkerAdapter) -> None:
    """The link has acted on everything it has seen: what it calls for at once was done."""
    for _ in range(2):
        came_round = threading.Event()
        worker._link.post(came_round.set)
        assert came_round.wait(20)


def test_nobody_registers_with_a_new_boot_while_a_copy_granted_by_an_older_one_runs(
    scripted: ScriptedGateway, held: HeldCopy
) -> None:
    with copying(scripted.run_dir, held) as engine:
        worker, scheduler = engine.worker._link.party, engine.scheduler._link.party
        scripted.restart_unseen()
        scripted.knows_parties = True
        until(lambda: registrations(scripted, scheduler), what="the half that copies nothing is back")
        until(lambda: engine.worker.snapshot().boot_id == scripted.boot.hex(), what="the new boot was greeted")
        let_two_rounds_pass(engine.worker)
        assert engine.worker.state is State.CONNECTING
        assert not registrations(scripted, worker)
        assert engine.worker.snapshot().settling_operations == 1
        held.go.set()
        until(lambda: registrations(scripted, worker), what="the copy is over")
        assert all(one.holds_nothing for one in registrations(scripted, worker))
        engine.wait_healthy()


def test_the_lock_on_a_pool_that_was_replaced_is_held_while_a_copy_into_it_runs(tmp_path: Path, held: HeldCopy) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with ScriptedGateway(run), copying(run, held) as engine:
        observer = LockObserver.open(run / "pool")
        worker = engine.worker._link.party
        run.rename(tmp_path / "old")
        run.mkdir()
        with ScriptedGateway(run) as second:
            until(lambda: registrations(second, engine.scheduler._link.party), 20, "the half that copies nothing left")
            until(lambda: engine.worker.state is State.CONNECTING, 20, "it has seen that its pool is gone")
            let_two_rounds_pass(engine.worker)
            assert observer.is_held(party_offset(worker))
            assert not registrations(second, worker)
            held.go.set()
            until(lambda: not observer.is_held(party_offset(worker)), what="the lock went with the copy")
            until(lambda: registrations(second, worker), 20, "it came to the new pool")
            engine.wait_healthy()
        observer.close()


def test_what_was_sent_to_a_dead_daemon_does_not_reach_the_next_one(run_dir: Path) -> None:
    first = ScriptedGateway(run_dir)
    with Engine(run_dir, heartbeat_seconds=5) as engine:
        engine.wait_healthy()
        first.hang_up()
        engine.store("r", tokens(1), blocks(1))
        until(lambda: engine.worker._link.num_waiting, what="its RESERVE lies in the socket's queue")
        first.close()
        until(lambda: engine.worker.state is State.DEAD)
        with ScriptedGateway(run_dir) as second:
            engine.wait_healthy()
            assert {one.boot for one in second.received if not isinstance(one, Hello)} == {second.boot}
