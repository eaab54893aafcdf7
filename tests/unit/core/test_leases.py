import pytest

from gateway.core.types import ReadGrant, Refusal
from gateway.wire.codes import CommitStatus, ErrorCode, ReserveStatus
from tests.unit.core.tables import CHUNK_BYTES, NAMESPACE, Tables, key, keys


def filled(num_chunks: int = 6, **config) -> tuple[Tables, bytes, bytes]:
    tables = Tables(**config)
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(*range(num_chunks)))
    return tables, worker, scheduler


def room(tables: Tables) -> int:
    """How many chunks nothing holds: free or evictable."""
    probe = tables.worker("room", replicas=9, replica=8)
    grants = tables.reserve(probe, 1, keys(*range(1000, 1009)))
    tables.abort(probe, 1)
    return sum(grant.status is ReserveStatus.GRANTED for grant in grants)


def test_a_lookup_counts_leading_chunks_and_leases_them():
    tables, _, scheduler = filled()
    found = tables.core.lookup(scheduler, 1, NAMESPACE, keys(0, 1, 2, 99, 3), tables.now, tables.wall)
    assert (found.chunks, found.lease_deadline) == (3, tables.now + 10.0)
    assert tables.core.lease_counts() == (1, 0, 0)
    assert tables.core.counts.lookup_tokens == {"m": 5 * 256}
    assert tables.core.counts.hit_tokens == {"m": 3 * 256}
    assert tables.core.namespace_usage()[0][1:] == (6, 6 * CHUNK_BYTES, tables.wall)


def test_nothing_found_leases_nothing():
    tables, _, scheduler = filled()
    found = tables.core.lookup(scheduler, 1, NAMESPACE, keys(99), tables.now, tables.wall)
    assert (found.chunks, found.lease_deadline) == (0, 0.0)
    unknown = tables.core.lookup(
        tables.scheduler("other", namespace=b""), 1, b"?" * 16, keys(0), tables.now, tables.wall
    )
    assert unknown.chunks == 0
    assert tables.core.lease_counts() == (0, 0, 0)


def test_a_chunk_counts_only_when_every_shard_of_it_is_there():
    tables = Tables(slab_chunks=16)
    shards = [tables.worker(f"w{shard}", shard=shard, shard_count=3) for shard in range(3)]
    scheduler = tables.scheduler(shard_count=3)
    tables.store(shards[0], 1, keys(0, 1, 2))
    tables.store(shards[1], 1, keys(0, 1, 2))
    assert tables.lookup(scheduler, 1, keys(0, 1, 2)) == 0
    tables.store(shards[2], 1, keys(0, 2))
    assert tables.lookup(scheduler, 1, keys(0, 1, 2)) == 1
    assert tables.core.lease_counts() == (1, 0, 0)
    tables.core.release(scheduler, 1, 0, 1, tables.now)
    tables.settle()
    assert tables.core.lease_counts() == (0, 0, 0)


def test_a_repeated_lookup_replaces_its_lease():
    tables, _, scheduler = filled(8)
    for _ in range(5):
        assert tables.lookup(scheduler, 1, keys(0, 1, 2)) == 3
    assert room(tables) == 5
    assert tables.lookup(scheduler, 1, keys(0)) == 1
    tables.core.release(scheduler, 1, 0, 1, tables.now)
    assert room(tables) == 8


def test_releasing_a_range_keeps_the_rest():
    tables, _, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    tables.core.release(scheduler, 1, 0, 3, tables.now)
    tables.settle()
    assert room(tables) == 3
    assert tables.stored() == {3, 4, 5, 6, 7}


def test_a_second_release_leaves_anothers_lease_alone():
    tables, _, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    tables.lookup(scheduler, 2, keys(*range(8)))
    for _ in range(3):
        tables.core.release(scheduler, 1, 0, 8, tables.now)
        tables.core.release(scheduler, 1, 5, 100, tables.now)
        tables.core.release(scheduler, 77, 0, 8, tables.now)
        tables.settle()
    assert room(tables) == 0
    tables.core.end_session(scheduler, 2, tables.now)
    assert room(tables) == 8


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2)])
def test_a_range_that_makes_no_sense_is_refused(start, end):
    tables, _, scheduler = filled()
    with pytest.raises(Refusal) as refused:
        tables.core.release(scheduler, 1, start, end, tables.now)
    assert refused.value.code is ErrorCode.INVALID


def test_a_lease_ends_at_its_deadline_and_the_session_may_look_up_again():
    tables, _, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    tables.wait(9.9)
    assert room(tables) == 0
    tables.wait(0.2)
    assert room(tables) == 8
    tables.heartbeat(scheduler, next_session=2, sessions=(1,))
    assert tables.core.lease_counts() == (0, 0, 0)
    tables.lookup(scheduler, 1, keys(0))


def test_only_listed_sessions_are_renewed_and_unlisted_ones_end():
    tables, _, scheduler = filled()
    for session in (1, 2, 3):
        tables.lookup(scheduler, session, keys(0))
    tables.wait(8.0)
    view = tables.heartbeat(scheduler, next_session=3, sessions=(1,))
    assert view.live_sessions == (1,)
    assert view.lease_deadline == tables.now + 10.0
    assert tables.core.lease_counts() == (2, 0, 0)  # 2 was ended; 3 is not below next
    tables.wait(3.0)
    assert tables.core.lease_counts() == (1, 0, 0)


def test_a_lookups_lease_is_not_renewed_past_its_cap():
    tables, _, scheduler = filled(max_lease_seconds=30.0)
    tables.lookup(scheduler, 1, keys(0))
    began = tables.now
    while tables.core.lease_counts() == (1, 0, 0):
        assert tables.now - began < 40.0
        tables.wait(1.0)
        tables.heartbeat(scheduler, next_session=2, sessions=(1,))
    assert tables.now - began == 30.0


def test_a_lookup_at_or_below_an_ended_session_finds_nothing():
    tables, _, scheduler = filled()
    tables.lookup(scheduler, 3, keys(0))
    tables.core.end_session(scheduler, 5, tables.now)
    assert tables.lookup(scheduler, 5, keys(0)) == 0
    assert tables.lookup(scheduler, 4, keys(0)) == 0
    assert tables.lookup(scheduler, 3, keys(0, 1)) == 2  # it lives
    assert tables.lookup(scheduler, 6, keys(0)) == 1
    tables.core.end_session(scheduler, 3, tables.now)
    assert tables.lookup(scheduler, 3, keys(0)) == 0


def test_a_lookup_of_a_session_that_a_heartbeat_ended_finds_nothing():
    tables, _, scheduler = filled()
    tables.heartbeat(scheduler, next_session=4, sessions=(2,))
    assert tables.lookup(scheduler, 3, keys(0)) == 0
    assert tables.lookup(scheduler, 2, keys(0)) == 1  # it was listed before its LOOKUP came
    assert tables.lookup(scheduler, 4, keys(0)) == 1


def test_ending_a_session_leaves_the_stores_of_its_request_alone():
    tables, worker, scheduler = filled()
    tables.lookup(scheduler, 1, keys(0))
    (late,) = tables.reserve(worker, 2, keys(6), depth=6)
    tables.core.end_session(scheduler, 1, tables.now)
    tables.settle()
    assert tables.counts() == (6, 1, 0)
    assert tables.commit(worker, 2, late.generation) == (CommitStatus.COMMITTED,)


def test_a_schedulers_death_ends_its_leases():
    tables, _, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    tables.die(scheduler)
    assert room(tables) == 8


def test_a_read_has_its_own_lease():
    tables, worker, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    grants, deadline = tables.core.read(worker, 5, keys(0, 99, 1), tables.now, tables.wall)
    tables.settle()
    assert deadline == tables.now + 10.0
    headers = {record.key: record for record in tables.file.headers.values()}
    expected = [headers[key(0)], None, headers[key(1)]]
    assert grants == tuple(
        ReadGrant(one.slot, one.slot * CHUNK_BYTES, one.generation) if one else ReadGrant() for one in expected
    )
    assert tables.core.counts.leased_bytes == 2 * CHUNK_BYTES
    tables.core.end_session(scheduler, 1, tables.now)
    assert room(tables) == 6
    tables.end_read(worker, 5)
    tables.end_read(worker, 5)
    tables.end_read(worker, 99)
    assert room(tables) == 8


def test_the_end_of_a_retrieve_leaves_the_lookups_lease_alone():
    tables, worker, scheduler = filled(8)
    tables.lookup(scheduler, 1, keys(*range(8)))
    tables.read(worker, 5, keys(*range(8)))
    tables.end_read(worker, 5)
    assert tables.core.lease_counts() == (1, 0, 0)
    assert room(tables) == 0
    tables.core.end_session(scheduler, 1, tables.now)
    assert room(tables) == 8


def test_a_repeated_read_gives_the_same_answer_and_pins_once():
    tables, worker, _ = filled(8)
    first = tables.read(worker, 5, keys(0, 99))
    tables.store(worker, 6, keys(99), depth=1)
    assert tables.read(worker, 5, keys(0, 99)) == first
    tables.end_read(worker, 5)
    assert room(tables) == 8


def test_an_operation_cannot_read_other_keys_under_its_lease():
    tables, worker, _ = filled()
    tables.read(worker, 5, keys(0))
    with pytest.raises(Refusal) as refused:
        tables.read(worker, 5, keys(1))
    assert refused.value.code is ErrorCode.INVALID


def test_each_reader_of_a_shard_has_its_own_lease():
    tables, _, _ = filled(8)
    readers = [tables.worker(f"reader{i}", replica=i, replicas=4) for i in range(4)]
    for reader in readers:
        tables.read(reader, 1, keys(*range(8)))
    for reader in readers:
        assert room(tables) == 0
        tables.end_read(reader, 1)
    assert room(tables) == 8


def test_a_read_lease_ends_by_deadline_by_silence_and_by_death():
    tables, worker, _ = filled()
    for operation in (2, 3, 4):
        tables.read(worker, operation, keys(0))
    tables.wait(8.0)
    tables.heartbeat(worker, next_operation=4, operations=(2,))
    assert tables.core.lease_counts() == (0, 2, 0)  # 3 is settled; 4 is not below next
    tables.wait(3.0)
    assert tables.core.lease_counts() == (0, 1, 0)
    tables.die(worker)
    assert tables.core.lease_counts() == (0, 0, 0)


def test_a_lookup_outside_the_registered_namespace_is_refused():
    tables, _, scheduler = filled()
    with pytest.raises(Refusal) as refused:
        tables.lookup(scheduler, 1, keys(0), namespace=b"?" * 16)
    assert refused.value.code is ErrorCode.INVALID
    with pytest.raises(Refusal) as refused:
        tables.lookup(scheduler, 1, (b"short",))
    assert refused.value.code is ErrorCode.INVALID


def test_sessions_and_operations_have_a_bound():
    tables, worker, scheduler = filled(8, max_sessions_per_party=2, max_operations_per_party=2)
    tables.lookup(scheduler, 1, keys(0))
    tables.lookup(scheduler, 2, keys(99))
    tables.lookup(scheduler, 2, keys(0))
    with pytest.raises(Refusal) as refused:
        tables.lookup(scheduler, 3, keys(0))
    assert refused.value.code is ErrorCode.LIMIT
    tables.read(worker, 1, keys(0))
    tables.reserve(worker, 2, keys(50))
    tables.reserve(worker, 2, keys(50, 51))
    for begin in (tables.read, tables.reserve):
        with pytest.raises(Refusal) as refused:
            begin(worker, 3, keys(0))
        assert refused.value.code is ErrorCode.LIMIT


def test_models_past_the_bound_are_counted_as_other():
    tables = Tables(max_models=2)
    for name in ("a", "b", "c", "d", "a"):
        scheduler = tables.scheduler(name, model=name, namespace=b"")
        tables.lookup(scheduler, 1, keys(0))
    assert set(tables.core.counts.lookup_tokens) == {"a", "b", "other"}
    assert tables.core.model_label("d") == "other"
