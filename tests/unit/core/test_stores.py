import pytest

from gateway.core.types import FreeHeader, Refusal, WriteHeader
from gateway.wire.codes import CommitStatus, ErrorCode, ReserveStatus
from tests.unit.core.tables import CHUNK_BYTES, Tables, key, keys

G, E, B, Q, F = (
    ReserveStatus.GRANTED,
    ReserveStatus.EXISTS,
    ReserveStatus.BUSY,
    ReserveStatus.QUOTA,
    ReserveStatus.FULL,
)


def statuses(grants):
    return [grant.status for grant in grants]


def test_a_chunk_is_reserved_written_and_readable():
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    grant, deadline = tables.core.reserve(worker, 1, keys(7), 3, key(6), tables.now)
    (written,) = tables.settle()
    assert isinstance(written, WriteHeader)
    assert (written.record.slot, written.record.generation) == (grant[0].slot, grant[0].generation)
    assert (written.record.is_ready, written.record.owner, written.record.depth) == (False, worker, 3)
    assert deadline == tables.now + 30.0
    assert tables.counts() == (0, 1, 0)
    assert tables.lookup(scheduler, 1, keys(7)) == 0

    result = tables.core.commit(worker, 1, [grant[0].generation], tables.now)
    assert (result.statuses, result.bytes) == ((CommitStatus.COMMITTED,), CHUNK_BYTES)
    (written,) = tables.settle()
    assert written.record.is_ready
    assert tables.counts() == (1, 0, 0)
    assert tables.lookup(scheduler, 2, keys(7)) == 1
    assert (tables.core.counts.commits, tables.core.counts.stored_bytes) == (1, CHUNK_BYTES)


def test_a_generation_is_the_boot_epoch_and_a_counter_never_used_twice():
    tables = Tables()
    worker = tables.worker()
    seen = [tables.reserve(worker, number, keys(number))[0].generation for number in range(4)]
    tables.abort(worker, 0)
    seen.append(tables.reserve(worker, 9, keys(9))[0].generation)
    assert [generation >> 40 for generation in seen] == [1] * 5
    assert len(set(seen)) == 5


def test_a_repeated_reserve_gives_the_same_grants():
    tables = Tables()
    worker = tables.worker()
    first = tables.reserve(worker, 1, keys(1, 2))
    tables.wait(20.0)
    assert tables.reserve(worker, 1, keys(1, 2)) == first
    assert tables.counts() == (0, 2, 0)
    tables.wait(20.0)  # asking again put the deadline off
    assert tables.counts() == (0, 2, 0)


def test_exists_and_busy_are_told_key_by_key():
    tables = Tables()
    one, other = tables.worker("one"), tables.worker("other", replica=0, replicas=2)
    tables.store(one, 1, keys(1))
    tables.reserve(one, 2, keys(2))
    assert statuses(tables.reserve(other, 1, keys(1, 2, 3))) == [E, B, G]
    assert statuses(tables.reserve(one, 3, keys(2))) == [B]  # another operation of the same party


def test_shards_and_namespaces_do_not_meet():
    tables = Tables()
    tables.store(tables.worker("one"), 1, keys(1))
    far = tables.worker("far", namespace=b"o" * 16)
    assert statuses(tables.reserve(far, 1, keys(1))) == [G]


def test_a_party_holds_no_more_than_its_share_and_always_one_chunk():
    tables = Tables(max_reserved_fraction=0.25)
    worker = tables.worker()
    assert statuses(tables.reserve(worker, 1, keys(1, 2, 3, 4))) == [G, G, Q, Q]
    grants = tables.reserve(worker, 1, keys(1, 2, 3))
    assert statuses(grants) == [G, G, Q]
    tables.commit(worker, 1, grants[0].generation)
    assert statuses(tables.reserve(worker, 1, keys(3))) == [G]

    small = Tables(max_reserved_fraction=0.01)
    assert statuses(small.reserve(small.worker(), 1, keys(1, 2))) == [G, Q]


def test_quarantine_counts_against_its_owners_share():
    tables = Tables(max_reserved_fraction=0.25)
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1, 2))
    tables.wait(31.0)
    assert tables.counts() == (0, 0, 2)
    assert statuses(tables.reserve(worker, 2, keys(3))) == [Q]
    (state,) = tables.core.party_states()
    assert (state.reserved_bytes, state.quarantined_bytes) == (0, 2 * CHUNK_BYTES)


def test_full_when_everything_is_held():
    tables = Tables()
    worker, other = tables.worker(), tables.worker("other", replicas=2, replica=1)
    tables.reserve(worker, 1, keys(*range(8)))
    assert statuses(tables.reserve(other, 1, keys(8, 9))) == [F, F]


@pytest.mark.parametrize(
    ("wanted", "depth", "parent"),
    [
        (keys(1, 2, 1), 0, b""),
        ((b"short",), 0, b""),
        (keys(1), -1, b""),
        (keys(1), 0, b"short"),
    ],
)
def test_a_reserve_that_makes_no_sense_changes_nothing(wanted, depth, parent):
    tables = Tables()
    worker = tables.worker()
    with pytest.raises(Refusal) as refused:
        tables.reserve(worker, 1, wanted, depth=depth, parent=parent)
    assert refused.value.code is ErrorCode.INVALID
    assert tables.settle() == []
    assert tables.counts() == (0, 0, 0)


def test_the_first_commit_wins_and_a_later_one_frees_its_slot():
    tables = Tables()
    one, other = tables.worker("one"), tables.worker("other", replicas=2, replica=1)
    early = tables.reserve(one, 1, keys(1))[0]
    tables.wait(31.0)  # the reservation's deadline: quarantined, and its key is free
    late = tables.reserve(other, 1, keys(1))[0]
    assert late.status is G
    assert tables.commit(other, 1, late.generation) == (CommitStatus.COMMITTED,)
    assert tables.commit(one, 1, early.generation) == (CommitStatus.EXISTS,)
    assert tables.file.log[-1] == FreeHeader(early.slot)
    assert tables.counts() == (1, 0, 0)


def test_a_commit_after_its_deadline_is_accepted_and_beats_a_live_reservation():
    tables = Tables()
    one, other = tables.worker("one"), tables.worker("other", replicas=2, replica=1)
    early = tables.reserve(one, 1, keys(1))[0]
    tables.wait(31.0)
    late = tables.reserve(other, 1, keys(1))[0]
    assert tables.commit(one, 1, early.generation) == (CommitStatus.COMMITTED,)
    assert tables.commit(other, 1, late.generation) == (CommitStatus.EXISTS,)
    assert tables.counts() == (1, 0, 0)


def test_a_commit_is_answered_the_same_again_and_a_strangers_is_unknown():
    tables = Tables()
    worker, other = tables.worker(), tables.worker("other", replicas=2, replica=1)
    generation = tables.reserve(worker, 1, keys(1))[0].generation
    assert tables.commit(other, 1, generation) == (CommitStatus.UNKNOWN,)
    assert tables.commit(worker, 2, generation) == (CommitStatus.UNKNOWN,)
    assert tables.commit(worker, 1, generation, 12345) == (CommitStatus.COMMITTED, CommitStatus.UNKNOWN)
    assert tables.commit(worker, 1, generation) == (CommitStatus.COMMITTED,)
    assert tables.commit(other, 1, generation) == (CommitStatus.UNKNOWN,)
    assert tables.core.counts.commits == 1


def test_abort_frees_what_is_named_or_all_and_nothing_that_is_committed():
    tables = Tables()
    worker = tables.worker()
    grants = tables.reserve(worker, 1, keys(1, 2, 3))
    tables.commit(worker, 1, grants[0].generation)
    tables.abort(worker, 1, grants[1].generation, grants[0].generation, 99)
    assert tables.counts() == (1, 1, 0)
    tables.abort(worker, 1)
    assert tables.counts() == (1, 0, 0)
    tables.abort(worker, 1)
    tables.abort(worker, 77)
    assert tables.counts() == (1, 0, 0)
    assert tables.core.counts.aborts == 2


def test_an_expired_reservation_is_quarantined_not_reused_and_frees_its_key():
    tables = Tables(num_slabs=1, slab_chunks=2)
    worker, other = tables.worker(), tables.worker("other", replicas=2, replica=1)
    slot = tables.reserve(worker, 1, keys(1))[0].slot
    tables.wait(29.9)
    assert tables.counts() == (0, 1, 0)
    tables.wait(0.2)
    assert tables.counts() == (0, 0, 1)
    granted = tables.reserve(other, 1, keys(1, 2))
    assert statuses(granted) == [G, F]
    assert granted[0].slot != slot
    tables.abort(worker, 1)  # the owner's word frees it
    assert tables.counts() == (0, 1, 0)


def test_a_renewed_reservation_does_not_expire():
    tables = Tables()
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    for _ in range(10):
        tables.wait(20.0)
        tables.heartbeat(worker, next_operation=2, operations=(1,))
    assert tables.counts() == (0, 1, 0)
    tables.wait(30.0)
    assert tables.counts() == (0, 0, 1)


def test_quarantine_is_freed_by_the_owners_death():
    tables = Tables()
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    tables.wait(31.0)
    assert worker in tables.core.owners()
    tables.die(worker)
    assert tables.counts() == (0, 0, 0)
    assert tables.core.owners() == frozenset()
    assert tables.core.counts.deaths == 1


def test_the_death_of_a_party_frees_what_it_was_writing():
    tables = Tables()
    worker = tables.worker()
    slots = [one.slot for one in tables.reserve(worker, 1, keys(1, 2))]
    tables.die(worker)
    assert tables.counts() == (0, 0, 0)
    assert not tables.file.headers
    assert {effect.slot for effect in tables.file.log[-2:]} == set(slots)


def test_unregistering_with_live_reservations_quarantines_them():
    tables = Tables()
    worker = tables.worker()
    generation = tables.reserve(worker, 1, keys(1))[0].generation
    tables.core.unregister(worker, tables.now)
    tables.settle()
    assert tables.counts() == (0, 0, 1)
    assert tables.core.owners() == {worker}
    with pytest.raises(Refusal) as refused:
        tables.commit(worker, 1, generation)
    assert refused.value.code is ErrorCode.UNKNOWN_PARTY
    tables.abort(worker, 1)  # it has left, but its word still counts
    assert tables.counts() == (0, 0, 0)
    tables.die(worker)
    assert tables.core.counts.deaths == 0  # it had unregistered


def test_a_settled_operation_whose_abort_was_lost_is_freed_by_a_heartbeat():
    tables = Tables()
    worker = tables.worker()
    for operation in (1, 2, 3):
        tables.reserve(worker, operation, keys(operation))
    tables.wait(31.0)
    tables.reserve(worker, 4, keys(4))
    tables.reserve(worker, 9, keys(9))
    tables.heartbeat(worker, next_operation=5, operations=(2,))
    assert tables.counts() == (0, 1, 1)  # 2 is listed, 9 is not settled yet
    tables.heartbeat(worker, next_operation=10, operations=())
    assert tables.counts() == (0, 0, 0)
