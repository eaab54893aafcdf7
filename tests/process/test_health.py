"""What the checks see, who hears of it, and what a pause of the daemon costs."""

import os
import signal
import time

from gateway.wire.codes import Health, Lifecycle, OperationKind, Phase, Role, State
from gateway.wire.messages import (
    AdapterStats,
    CheckInfo,
    Drain,
    EngineInfo,
    OperationInfo,
    Ping,
    Resume,
    Sample,
)
from tests.support.daemon import Daemon
from tests.support.party import RawParty
from tests.support.poll import until


def check(daemon: Daemon, name: str) -> CheckInfo:
    return next(check for check in daemon.snapshot().checks if check.name == name)


def engine(daemon: Daemon, name: str = "engine-a") -> EngineInfo:
    return next(engine for engine in daemon.snapshot().engines if engine.name == name)


def admin_pid(daemon: Daemon) -> int:
    (pid,) = [pid for pid in daemon.processes() if pid != daemon.pid]
    return pid


def test_a_pool_file_that_is_gone_makes_it_unhealthy_and_every_engine_is_told(daemon: Daemon) -> None:
    aside = daemon.pool.with_name("aside")
    with RawParty(daemon.run_dir).register() as party:
        assert party.ping().health is Health.HEALTHY

        daemon.pool.rename(aside)
        until(lambda: party.ping().health is Health.UNHEALTHY, what="unhealthy")
        assert str(daemon.pool) in party.ping().reason
        assert not daemon.snapshot().ready
        assert daemon.snapshot().state is Lifecycle.READY

        daemon.pool.write_bytes(aside.read_bytes()[:8192])
        until(lambda: "another file" in check(daemon, "pool").reason, what="another file seen")

        aside.rename(daemon.pool)
        until(lambda: party.ping().health is Health.HEALTHY, what="healthy again")
        assert daemon.snapshot().ready
        party.store((1,))


def test_much_of_the_pool_in_quarantine_makes_it_degraded_until_the_owners_are_dead(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as first, RawParty(daemon.run_dir, group="b").register() as second:
        first.reserve(range(32), 1)
        second.reserve(range(100, 132), 1)
        with daemon.admin_client() as client:
            client.request(Drain(number=0, requested_by="test", deadline_seconds=0.0))
            until(lambda: daemon.snapshot().health is Health.DEGRADED, what="degraded")
            assert "death" in check(daemon, "quarantine").reason
            client.request(Resume(number=0, requested_by="test"))
        assert daemon.snapshot().ready

        first.die()
        until(lambda: daemon.snapshot().health is Health.HEALTHY, what="healthy again")
        assert daemon.snapshot().slots.quarantined == 32


def test_an_admin_process_that_dies_is_started_again(daemon: Daemon) -> None:
    first = admin_pid(daemon)

    os.kill(first, signal.SIGKILL)

    until(lambda: daemon.log_lines("admin_died"), what="the death noticed")
    until(lambda: [p for p in daemon.processes() if p not in (first, daemon.pid)], what="another started")
    until(lambda: check(daemon, "admin").ok, what="the check holds again")
    assert daemon.snapshot().health is Health.HEALTHY
    until((daemon.admin_dir / "admin.json").exists, 20, "the new one listens")


def test_the_admin_process_goes_with_a_core_that_is_killed(daemon: Daemon) -> None:
    daemon.kill()

    until(lambda: not daemon.processes(), what="no process left")


def test_a_core_that_hangs_is_killed_by_the_watchdog_with_a_reason() -> None:
    with Daemon({"KVGATE_WATCHDOG_SECONDS": "2"}) as daemon:
        daemon.start()
        daemon.pause()

        assert daemon.wait(60) == -signal.SIGKILL
        until(lambda: daemon.log_lines("core_killed"), what="the reason logged")
        assert any("silent_seconds" in line for line in daemon.log_lines("core_silent"))
        until(lambda: not daemon.processes(), what="no process left")


def test_a_pause_does_not_cost_what_has_its_renewal_waiting_in_the_queue() -> None:
    with Daemon({"KVGATE_LEASE_SECONDS": "1", "KVGATE_RESERVATION_SECONDS": "1"}) as daemon:
        daemon.start()
        with RawParty(daemon.run_dir).register() as worker:
            worker.store((1,))
            (grant,) = worker.reserve((2,), 10)
            worker.try_read((1,), 11)
            daemon.pause()
            worker.dealer.send(Ping(number=0, party=worker.id, next_operation=12, operations=(10, 11)))
            paused_at = time.monotonic()
            until(lambda: time.monotonic() > paused_at + 1.5, what="both have run out by the clock")
            daemon.go_on()

            worker.dealer.receive()
            snapshot = daemon.snapshot()
            assert (snapshot.slots.writing, snapshot.slots.quarantined) == (1, 0)
            assert Sample("leases", ("read",), 1.0) in snapshot.gauges
            worker.write(grant, 2)
            assert worker.commit(10, grant.generation) == ("committed",)
        assert daemon.log_lines("loop_paused")
        assert daemon.snapshot().health is Health.HEALTHY


def test_what_engines_tell_in_heartbeats_is_what_operators_see(daemon: Daemon) -> None:
    pending = OperationInfo(
        number=7,
        request_id="request-7",
        kind=OperationKind.STORE,
        phase=Phase.COPYING,
        age_seconds=0.1,
        chunks=2,
    )
    stats = AdapterStats(
        state=State.HEALTHY,
        gauges=(
            Sample("pending_stores", (), 2.0),
            Sample("pending_retrieves", (), 1.0),
            Sample("retained_events", (), 3.0),
        ),
        counters=(Sample("operations", ("store", "stored"), 5.0), Sample("invented", (), 1.0)),
        pending=(pending,),
    )
    with RawParty(daemon.run_dir).register() as worker, RawParty(daemon.run_dir, Role.SCHEDULER).register():
        worker.ping(next_operation=8, operations=(7,), stats=stats)

        seen = engine(daemon)
        assert (seen.pending_stores, seen.pending_retrieves, seen.retained_events) == (2, 1, 3)
        assert seen.counters == (Sample("operations", ("store", "stored"), 5.0),)
        assert {party.state for party in seen.parties} == {State.HEALTHY, State.CONNECTING}
        (transfer,) = daemon.snapshot(transfers=True).transfers
        assert (transfer.engine, transfer.operation) == ("engine-a", pending)
        assert daemon.snapshot().transfers == ()

        until(lambda: engine(daemon).pending_stores == 0, what="a silent party's gauges dropped")
        assert engine(daemon).counters == seen.counters
