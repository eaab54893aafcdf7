import math

import pytest

from gateway.core.types import Refusal
from gateway.wire.codes import CommitStatus, DrainOutcome, ErrorCode, Lifecycle, ReserveStatus
from tests.unit.core.tables import Tables, keys

READY, DRAINING, DRAINED, STOPPING = Lifecycle.READY, Lifecycle.DRAINING, Lifecycle.DRAINED, Lifecycle.STOPPING


def busy() -> tuple[Tables, bytes, bytes, int]:
    """One store and one retrieve under way, and a chunk under a lookup's lease."""
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(1))
    generation = tables.reserve(worker, 2, keys(2))[0].generation
    tables.read(worker, 3, keys(1))
    tables.lookup(scheduler, 1, keys(1))
    return tables, worker, scheduler, generation


def test_nothing_under_way_is_drained_in_the_same_step():
    tables = Tables()
    tables.scheduler()
    assert not tables.drain()
    assert tables.core.state is DRAINED
    record = tables.core.drain_record()
    assert (record.outcome, record.state, record.finished_at) == (DrainOutcome.COMPLETED, DRAINED, tables.wall)
    assert tables.core.counts.drains == {"completed": 1}


def test_a_drain_completes_in_the_step_in_which_the_last_thing_ends():
    tables, worker, _, generation = busy()
    assert tables.core.drain_record() is None
    tables.drain(30.0)
    assert (tables.core.state, tables.core.remaining()) == (DRAINING, (1, 1))
    tables.end_read(worker, 3)
    record = tables.core.drain_record()
    assert (record.state, record.outcome, record.done, record.deadline) == (DRAINING, None, 1, tables.now + 30.0)
    assert (record.requested_by, record.reason, record.deadline_at) == ("tests", "test", tables.wall + 30.0)
    assert tables.commit(worker, 2, generation) == (CommitStatus.COMMITTED,)
    record = tables.core.drain_record()
    assert (tables.core.state, record.outcome, record.done, record.aborted) == (DRAINED, DrainOutcome.COMPLETED, 2, 0)


@pytest.mark.parametrize("end", ["abort", "death", "expiry"])
def test_a_drain_completes_however_the_last_thing_ends(end):
    tables, worker, _, _ = busy()
    tables.drain(80.0)
    tables.end_read(worker, 3)
    if end == "abort":
        tables.abort(worker, 2)
    elif end == "death":
        tables.die(worker)
    else:
        tables.wait(31.0)  # quarantine does not hold a drain back
        assert tables.counts()[2] == 1
    assert tables.core.state is DRAINED


def test_at_the_deadline_reservations_are_quarantined_and_leases_dropped():
    tables, worker, _, generation = busy()
    tables.drain(5.0)
    tables.wait(4.9)
    assert tables.core.state is DRAINING
    tables.wait(0.2)
    record = tables.core.drain_record()
    assert (tables.core.state, record.outcome) == (DRAINED, DrainOutcome.DEADLINE_EXCEEDED)
    assert (record.done, record.aborted) == (0, 2)
    assert tables.counts() == (1, 0, 1)
    assert tables.core.lease_counts() == (0, 0, 0)
    assert tables.core.counts.drains == {"deadline_exceeded": 1}
    assert tables.commit(worker, 2, generation) == (CommitStatus.DRAINED,)
    assert tables.counts() == (1, 0, 0)
    assert tables.stored() == {1}


def test_a_cut_reservation_stays_cut_after_resume():
    tables, worker, _, generation = busy()
    tables.drain(0.0)
    tables.resume()
    again = tables.reserve(worker, 2, keys(2))[0]
    assert again.status is ReserveStatus.GRANTED
    assert again.generation != generation
    assert tables.commit(worker, 2, generation, again.generation) == (CommitStatus.DRAINED, CommitStatus.COMMITTED)


def test_force_cuts_at_once():
    tables, _, _, _ = busy()
    tables.drain(0.0)
    assert (tables.core.state, tables.core.drain_record().outcome) == (DRAINED, DrainOutcome.FORCED)
    assert tables.core.counts.drains == {"forced": 1}


def test_force_during_a_drain_cuts_it():
    tables, _, _, _ = busy()
    tables.drain(30.0)
    began = tables.core.drain_record().id
    tables.drain(0.0)
    record = tables.core.drain_record()
    assert (record.id, record.outcome) == (began, DrainOutcome.FORCED)


def test_force_with_nothing_under_way_is_complete():
    tables = Tables()
    tables.drain(0.0)
    assert tables.core.drain_record().outcome is DrainOutcome.COMPLETED


def test_joining_keeps_the_id_and_the_earlier_deadline_and_ors_the_flags():
    tables, _, _, _ = busy()
    tables.drain(20.0)
    first = tables.core.drain_record()
    tables.drain(60.0, flush=True)
    joined = tables.core.drain_record()
    assert (joined.id, joined.deadline, joined.flush, joined.exit) == (first.id, first.deadline, True, False)
    tables.drain(5.0, exits=True)
    joined = tables.core.drain_record()
    assert (joined.id, joined.deadline, joined.flush, joined.exit) == (first.id, tables.now + 5.0, True, True)
    tables.wait(5.0)
    assert tables.core.state is STOPPING


def test_a_drained_gateway_told_to_drain_and_exit_stops():
    tables = Tables()
    tables.drain()
    began = tables.core.drain_record().id
    assert tables.drain()
    assert tables.drain(exits=True)
    assert (tables.core.state, tables.core.drain_record().id) == (STOPPING, began)


def test_resume_cancels_a_drain_under_way_and_the_next_has_a_new_id():
    tables, worker, _, _ = busy()
    tables.drain()
    first = tables.core.drain_record().id
    tables.resume()
    record = tables.core.drain_record()
    assert (tables.core.state, record.outcome, record.state) == (READY, DrainOutcome.CANCELLED, READY)
    assert tables.core.counts.drains == {"cancelled": 1}
    assert tables.reserve(worker, 9, keys(9))[0].status is ReserveStatus.GRANTED
    tables.resume()
    assert tables.core.counts.drains == {"cancelled": 1}
    tables.drain()
    assert tables.core.drain_record().id != first


def test_a_drain_that_exits_cannot_be_resumed():
    tables, _, _, _ = busy()
    tables.drain(exits=True)
    with pytest.raises(Refusal) as refused:
        tables.resume()
    assert refused.value.code is ErrorCode.CONFLICT
    assert tables.core.state is DRAINING


@pytest.mark.parametrize("deadline", [-1.0, 86401.0, math.nan, math.inf])
def test_a_deadline_that_makes_no_sense_changes_nothing(deadline):
    tables, _, _, _ = busy()
    with pytest.raises(Refusal) as refused:
        tables.drain(deadline)
    assert refused.value.code is ErrorCode.INVALID
    assert tables.core.state is READY
    with pytest.raises(Refusal):
        tables.core.drain_engine("e", deadline, tables.now)
    assert tables.core.engine_states() == {"e": (READY, False)}


def test_while_draining_lookups_find_nothing_and_reserves_are_refused():
    tables, worker, scheduler, _ = busy()
    tables.drain()
    assert tables.lookup(scheduler, 2, keys(1)) == 0
    with pytest.raises(Refusal) as refused:
        tables.reserve(worker, 2, keys(2))
    assert refused.value.code is ErrorCode.DRAINING
    with pytest.raises(Refusal) as refused:
        tables.worker("new")
    assert refused.value.code is ErrorCode.DRAINING
    tables.worker()  # a known one may come back


def test_while_draining_only_what_a_lookup_of_the_group_leased_may_be_read():
    tables, worker, scheduler, _ = busy()
    tables.store(worker, 5, keys(5))
    stranger = tables.worker("stranger", group="another", replicas=2, replica=1)
    tables.drain()
    assert tables.read(worker, 6, keys(1))[0].slot >= 0
    for party, wanted in ((worker, keys(5)), (worker, keys(1, 5)), (worker, keys(99)), (stranger, keys(1))):
        with pytest.raises(Refusal) as refused:
            tables.read(party, 7, wanted)
        assert refused.value.code is ErrorCode.DRAINING
    tables.core.end_session(scheduler, 1, tables.now)
    with pytest.raises(Refusal):
        tables.read(worker, 8, keys(1))


def test_while_draining_a_lease_past_its_deadline_promises_nothing():
    tables, worker, _, _ = busy()
    tables.drain()
    tables.now += 10.0  # no tick in between
    with pytest.raises(Refusal) as refused:
        tables.read(worker, 6, keys(1))
    assert refused.value.code is ErrorCode.DRAINING


def test_while_draining_a_running_retrieve_is_renewed_and_a_lookup_is_not():
    tables, worker, scheduler, _ = busy()
    tables.drain(60.0)
    deadline = tables.now + 10.0
    for _ in range(3):
        tables.wait(5.0)
        tables.heartbeat(worker, next_operation=4, operations=(2, 3))
        view = tables.heartbeat(scheduler, next_session=2, sessions=(1,))
        assert view.live_sessions == ((1,) if tables.now < deadline else ())
        assert view.lease_deadline == (deadline if tables.now < deadline else 0.0)
    assert tables.core.lease_counts() == (0, 1, 1)


def test_every_party_is_told_of_the_drain():
    tables, worker, scheduler, _ = busy()
    tables.drain(5.0)
    record = tables.core.drain_record()
    for party in (worker, scheduler, b"", b"?" * 16):
        view = tables.heartbeat(party, next_operation=1, next_session=1)
        assert (view.state, view.drain_id, view.drain_deadline) == (DRAINING, record.id, record.deadline)
    tables.drain(0.0)
    assert tables.heartbeat(worker, next_operation=1).state is DRAINED
    tables.resume()
    view = tables.heartbeat(worker, next_operation=1)
    assert (view.state, view.drain_id, view.drain_deadline) == (READY, "", 0.0)


# -- signals


def test_a_signal_drains_within_the_stop_deadline_and_stops():
    tables, _, _, _ = busy()
    tables.core.stop_signal(tables.now, tables.wall)
    record = tables.core.drain_record()
    assert (tables.core.state, record.exit, record.deadline) == (DRAINING, True, tables.now + 10.0)
    tables.wait(10.0)
    assert (tables.core.state, tables.core.drain_record().outcome) == (STOPPING, DrainOutcome.DEADLINE_EXCEEDED)


def test_a_second_signal_forces():
    tables, _, _, _ = busy()
    tables.core.stop_signal(tables.now, tables.wall)
    tables.core.stop_signal(tables.now, tables.wall)
    assert (tables.core.state, tables.core.drain_record().outcome) == (STOPPING, DrainOutcome.FORCED)
    tables.core.stop_signal(tables.now, tables.wall)
    assert tables.core.state is STOPPING


def test_a_signal_joins_an_operators_drain():
    tables, worker, _, _ = busy()
    tables.drain(5.0)
    tables.core.stop_signal(tables.now, tables.wall)
    record = tables.core.drain_record()
    assert (record.exit, record.deadline, record.requested_by) == (True, tables.now + 5.0, "tests")
    tables.end_read(worker, 3)
    tables.abort(worker, 2)
    assert tables.core.state is STOPPING


# -- one engine


def two_engines() -> tuple[Tables, bytes, bytes]:
    tables = Tables()
    one, two = tables.worker("one", engine="one"), tables.worker("two", engine="two", replica=1, replicas=2)
    tables.store(one, 1, keys(1))
    tables.reserve(one, 2, keys(2))
    tables.read(one, 3, keys(1))
    tables.reserve(two, 2, keys(3))
    return tables, one, two


def test_one_engine_is_drained_alone():
    tables, one, two = two_engines()
    scheduler = tables.scheduler(engine="one")
    assert not tables.core.drain_engine("one", 20.0, tables.now)
    assert tables.core.state is READY
    assert tables.core.engine_states() == {"one": (DRAINING, False), "two": (READY, False)}
    view = tables.heartbeat(one, next_operation=1)
    assert (view.state, view.drain_deadline) == (DRAINING, tables.now + 20.0)
    assert view.drain_id
    assert tables.heartbeat(two, next_operation=1).state is READY
    assert tables.lookup(scheduler, 1, keys(1)) == 0
    with pytest.raises(Refusal) as refused:
        tables.reserve(one, 2, keys(9))
    assert refused.value.code is ErrorCode.DRAINING
    with pytest.raises(Refusal):
        tables.read(one, 9, keys(1))
    assert tables.reserve(two, 4, keys(4))[0].status is ReserveStatus.GRANTED

    tables.end_read(one, 3)
    tables.abort(one, 2)
    assert tables.core.engine_states()["one"] == (DRAINED, False)
    assert tables.core.drain_engine("one", 20.0, tables.now)
    assert tables.heartbeat(tables.worker("fresh", engine="one", replica=2, replicas=3)).state is DRAINED
    tables.core.resume_engine("one", tables.now)
    assert tables.reserve(one, 9, keys(9))[0].status is ReserveStatus.GRANTED
    assert tables.core.counts.drains == {}  # only the gateway's own are counted


def test_an_engines_deadline_cuts_its_work_alone_and_the_earlier_one_wins():
    tables, one, two = two_engines()
    tables.core.drain_engine("one", 20.0, tables.now)
    tables.core.drain_engine("one", 5.0, tables.now)
    tables.core.drain_engine("one", 60.0, tables.now)
    tables.wait(5.0)
    assert tables.core.engine_states()["one"] == (DRAINED, False)
    assert tables.counts() == (1, 1, 1)
    assert tables.core.remaining("two") == (1, 0)
    assert tables.commit(one, 2, *(one_.generation for one_ in tables.file.headers.values() if one_.owner == one)) != ()
    assert tables.counts() == (1, 1, 0)
    assert tables.core.party_states()[1].spec.party == two


def test_an_engine_is_forced_at_once():
    tables, _, _ = two_engines()
    tables.core.drain_engine("one", 0.0, tables.now)
    assert tables.core.engine_states() == {"one": (DRAINED, False), "two": (READY, False)}


def test_the_drain_of_an_engine_that_left_is_forgotten_after_an_hour():
    tables, one, _ = two_engines()
    tables.core.drain_engine("one", 0.0, tables.now)
    tables.core.tick(tables.now, tables.now)
    tables.core.unregister(one, tables.now)
    tables.core.party_died(one, tables.now)
    start = tables.now
    for later, is_known in ((0.0, True), (3599.0, True), (3600.0, False)):
        tables.core.tick(start + later, start + later)
        assert ("one" in tables.core.engine_states()) is is_known
    tables.core.check()


def test_the_gateways_resume_leaves_an_engine_drained_alone():
    tables, one, _ = two_engines()
    tables.core.drain_engine("one", 0.0, tables.now)
    tables.drain(0.0)
    assert tables.heartbeat(one, next_operation=1).state is DRAINED
    tables.resume()
    assert tables.core.engine_states()["one"] == (DRAINED, False)
