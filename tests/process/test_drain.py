"""The drain over the wire: every step of the lifecycle table, with real work under way."""

from collections.abc import Iterator

import pytest

from gateway.client import GatewayClient, GatewayRefused
from gateway.wire.codes import DrainOutcome, ErrorCode, Lifecycle, Role
from gateway.wire.messages import Done, Drain, Drained, DrainInfo, Error, Fence, Resume
from tests.support.daemon import Daemon
from tests.support.party import RawParty, chunk_bytes
from tests.support.poll import until


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Reservations and leases outlive the test: nothing ends but by what the test does."""
    with Daemon({"KVGATE_RESERVATION_SECONDS": "60", "KVGATE_LEASE_SECONDS": "60"}) as started:
        yield started.start()


@pytest.fixture
def operator(daemon: Daemon) -> Iterator[GatewayClient]:
    with daemon.admin_client() as client:
        yield client


@pytest.fixture
def worker(daemon: Daemon) -> Iterator[RawParty]:
    with RawParty(daemon.run_dir) as party:
        yield party.register()


@pytest.fixture
def scheduler(daemon: Daemon) -> Iterator[RawParty]:
    with RawParty(daemon.run_dir, Role.SCHEDULER) as party:
        yield party.register()


def drain(operator: GatewayClient, **fields) -> Drained:
    reply = operator.request(Drain(number=0, requested_by="test", peer="here", **fields))
    assert isinstance(reply, Drained)
    return reply


def begin(operator: GatewayClient, **fields) -> DrainInfo:
    """Begin or join a drain of the gateway; what it is now."""
    reply = drain(operator, **fields)
    assert reply.drain is not None
    return reply.drain


def resume(operator: GatewayClient, engine: str = "") -> None:
    assert isinstance(operator.request(Resume(number=0, requested_by="test", engine=engine)), Done)


def code(reply: object) -> ErrorCode | None:
    return reply.code if isinstance(reply, Error) else None


def ended(daemon: Daemon) -> DrainInfo:
    """The drain, once it is over."""

    def over() -> DrainInfo | None:
        info = daemon.snapshot().drain
        assert info is not None
        return info if info.finished_at else None

    info = until(over, what="the drain over")
    assert info is not None
    return info


def test_an_idle_gateway_is_drained_at_once(daemon: Daemon, operator: GatewayClient, worker: RawParty) -> None:
    assert not drain(operator, reason="upgrade").already

    info = ended(daemon)
    assert (info.state, info.outcome, info.reason) == (Lifecycle.DRAINED, DrainOutcome.COMPLETED, "upgrade")
    assert (info.requested_by, info.aborted) == ("test", 0)
    snapshot = daemon.snapshot()
    assert (snapshot.state, snapshot.ready) == (Lifecycle.DRAINED, False)
    assert worker.ping().state in (Lifecycle.DRAINING, Lifecycle.DRAINED)


def test_a_drain_is_seen_in_the_very_next_reply_and_takes_no_new_work(
    daemon: Daemon, operator: GatewayClient, worker: RawParty, scheduler: RawParty
) -> None:
    worker.store((1,))
    worker.reserve((2,), 10)

    info = begin(operator)

    assert info.state is Lifecycle.DRAINING
    assert not daemon.snapshot().ready
    pong = worker.ping(next_operation=11, operations=(10,))
    assert (pong.state, pong.known) == (Lifecycle.DRAINING, True)
    assert pong.drain is not None
    assert pong.drain.id == info.id
    assert code(worker.try_reserve((3,), 11)) is ErrorCode.DRAINING
    assert code(scheduler.try_lookup((1,), 1)) in (ErrorCode.DRAINING, None)
    assert code(worker.try_read((1,), 12)) is ErrorCode.DRAINING
    with RawParty(daemon.run_dir, engine="newcomer") as newcomer:
        assert code(newcomer.try_register()) is ErrorCode.DRAINING


def test_a_refusal_says_when_to_ask_again(operator: GatewayClient, worker: RawParty) -> None:
    worker.reserve((2,), 10)
    begin(operator)

    reply = worker.try_reserve((3,), 11)
    assert isinstance(reply, Error)
    assert reply.retry_after_ms > 0


def test_work_under_way_is_finished_and_the_drain_completes(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    (grant,) = worker.reserve((2,), 10)
    info = begin(operator)
    assert info.remaining.operations == 1

    worker.write(grant, 2)
    assert worker.commit(10, grant.generation) == ("committed",)

    info = ended(daemon)
    assert (info.outcome, info.aborted, info.remaining.operations) == (DrainOutcome.COMPLETED, 0, 0)
    resume(operator)
    assert worker.load((2,)) == [chunk_bytes(2)]


def test_a_promised_load_is_still_granted_while_draining(
    daemon: Daemon, operator: GatewayClient, worker: RawParty, scheduler: RawParty
) -> None:
    worker.store((1, 2))
    (grant,) = worker.reserve((3,), 10)
    assert scheduler.lookup((1, 2), session=1) == 2
    begin(operator)

    assert worker.load((1, 2)) == [chunk_bytes(1), chunk_bytes(2)]

    worker.write(grant, 3)
    worker.commit(10, grant.generation)
    assert ended(daemon).outcome is DrainOutcome.COMPLETED


def test_the_deadline_cuts_what_is_left_and_quarantines_it(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    (grant,) = worker.reserve((2,), 10)

    begin(operator, deadline_seconds=0.3)

    info = ended(daemon)
    assert (info.outcome, info.aborted) == (DrainOutcome.DEADLINE_EXCEEDED, 1)
    slots = daemon.snapshot().slots
    assert (slots.writing, slots.quarantined) == (0, 1)
    assert worker.commit(10, grant.generation) == ("drained",)
    assert daemon.snapshot().slots.quarantined == 0


def test_force_cuts_at_once(daemon: Daemon, operator: GatewayClient, worker: RawParty) -> None:
    worker.reserve((2,), 10)

    info = begin(operator, deadline_seconds=0.0)

    info = ended(daemon)
    assert (info.outcome, info.aborted) == (DrainOutcome.FORCED, 1)


def test_draining_again_joins_the_drain_with_the_earlier_deadline(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    worker.reserve((2,), 10)
    first = begin(operator, deadline_seconds=60.0)
    later = begin(operator, deadline_seconds=600.0, flush=True)
    assert (later.id, later.deadline_at, later.flush) == (first.id, first.deadline_at, True)

    sooner = begin(operator, deadline_seconds=0.2)
    assert sooner.id == first.id
    assert sooner.deadline_at < first.deadline_at
    assert ended(daemon).outcome is DrainOutcome.DEADLINE_EXCEEDED


def test_draining_a_drained_gateway_changes_nothing(daemon: Daemon, operator: GatewayClient) -> None:
    first = begin(operator)
    before = ended(daemon)

    reply = drain(operator)

    assert reply.already
    assert reply.drain is not None
    assert (reply.drain.id, reply.drain.finished_at) == (first.id, before.finished_at)


def test_resume_cancels_a_drain_and_all_comes_back(daemon: Daemon, operator: GatewayClient, worker: RawParty) -> None:
    (grant,) = worker.reserve((2,), 10)
    begin(operator)

    resume(operator)

    assert ended(daemon).outcome is DrainOutcome.CANCELLED
    assert daemon.snapshot().ready
    assert worker.ping(next_operation=11, operations=(10,)).state is Lifecycle.READY
    worker.write(grant, 2)
    assert worker.commit(10, grant.generation) == ("committed",)
    resume(operator)
    assert daemon.snapshot().ready


def test_an_exiting_drain_ends_the_process_and_cannot_be_resumed(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    (grant,) = worker.reserve((2,), 10)
    begin(operator, exit=True)
    with pytest.raises(GatewayRefused) as refused:
        resume(operator)
    assert refused.value.code is ErrorCode.CONFLICT

    worker.write(grant, 2)
    worker.try_commit(10, grant.generation)

    assert daemon.wait() == 0
    (line,) = daemon.log_lines("stopped")
    assert line["outcome"] == "completed"


def test_one_engine_is_drained_alone(daemon: Daemon, operator: GatewayClient, worker: RawParty) -> None:
    with RawParty(daemon.run_dir, engine="engine-b", group="group-2").register() as other:
        reply = drain(operator, engine="engine-a")
        assert (reply.already, reply.drain) == (False, None)

        assert worker.ping().state in (Lifecycle.DRAINING, Lifecycle.DRAINED)
        assert code(worker.try_reserve((3,), 11)) is ErrorCode.DRAINING
        assert other.ping().state is Lifecycle.READY
        other.store((1,))
        assert daemon.snapshot().ready

        resume(operator, engine="engine-a")
        assert worker.ping().state is Lifecycle.READY
        worker.store((3,))


def test_a_fenced_engine_is_no_party_any_more_and_cannot_come_back(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    worker.reserve((2,), 10)
    operator.request(Fence(number=0, requested_by="test", engine="engine-a"))

    assert not worker.ping().known
    assert code(worker.try_reserve((3,), 11)) is ErrorCode.FENCED
    assert code(worker.try_register()) is ErrorCode.FENCED
    assert daemon.snapshot().slots.quarantined == 1
    worker.die()
    until(lambda: daemon.snapshot().slots.quarantined == 0, 1.5, "the slot freed by its owner's death")


def test_every_change_is_written_down_whether_done_or_refused(
    daemon: Daemon, operator: GatewayClient, worker: RawParty
) -> None:
    worker.reserve((2,), 10)
    begin(operator, reason="upgrade", exit=True)
    with pytest.raises(GatewayRefused):
        resume(operator)

    drained, refused = daemon.log_lines("audit")
    assert {name: drained[name] for name in ("who", "peer", "action", "before", "after", "result", "reason")} == {
        "who": "test",
        "peer": "here",
        "action": "drain",
        "before": "ready",
        "after": "draining",
        "result": "ok",
        "reason": "upgrade",
    }
    assert (refused["action"], refused["result"], refused["code"]) == ("resume", "refused", "conflict")
    assert refused["before"] == refused["after"] == "draining"
    counters = {s.labels: s.value for s in daemon.snapshot().counters if s.name == "audit_events"}
    assert counters == {("drain", "ok"): 1, ("resume", "refused"): 1}
