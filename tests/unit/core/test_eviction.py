import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy.choice import POLICIES
from gateway.core.policy.lru import LeastRecentlyUsed
from gateway.core.policy.order import NO_SLOT
from gateway.core.types import CoreConfig, FreeHeader, WriteHeader
from gateway.metrics.table import IDLE_BUCKETS
from gateway.wire.codes import ReserveStatus
from tests.unit.core.tables import CHUNK_BYTES, NAMESPACE, Tables, key, keys

NARROW = {"namespace": b"1" * 16, "chunk_bytes": CHUNK_BYTES}
WIDE = {"namespace": b"4" * 16, "chunk_bytes": 4 * CHUNK_BYTES}


def statuses(grants):
    return [grant.status for grant in grants]


@given(st.lists(st.tuples(st.sampled_from(["add", "touch", "remove", "hold", "release"]), st.integers(0, 5))))
def test_least_recently_used_is_a_list_in_order_of_touch(steps):
    order, model = LeastRecentlyUsed(), []
    for step, slot in steps:
        is_here = slot in model
        if step in ("add", "release") and is_here:
            continue  # the tables never add twice
        if is_here:
            model.remove(slot)
        if step in ("add", "release") or (step == "touch" and is_here):
            model.append(slot)
        getattr(order, step)(*((slot, key(slot)) if step == "add" else (slot,)))
        assert list(order) == model
        assert order.coldest() == (model[0] if model else NO_SLOT)
        assert list(order.heads()) == model[:1]
        assert len(order) == len(model)
        assert all((one in order) == (one in model) for one in range(6))


def test_a_full_pool_evicts_the_coldest_chunk_for_a_store():
    tables = Tables()
    worker = tables.worker()
    for number in range(8):
        tables.store(worker, number, keys(number))
        tables.wait(1.0)
    tables.store(worker, 8, keys(8))
    assert tables.stored() == {1, 2, 3, 4, 5, 6, 7, 8}
    assert tables.core.counts.evictions == {"capacity": 1}
    assert sum(tables.core.counts.eviction_idle_seconds) == 1
    assert tables.core.counts.eviction_idle_sum == 8.0
    assert tables.core.counts.eviction_idle_seconds[IDLE_BUCKETS.index(15.0)] == 1


def test_idle_buckets_are_those_of_the_metrics_table():
    assert CoreConfig().idle_buckets == IDLE_BUCKETS


def test_the_old_header_is_freed_before_the_new_one_is_written():
    tables = Tables(slab_chunks=1)
    worker = tables.worker()
    (slot,) = tables.store(worker, 1, keys(1))
    before = len(tables.file.log)
    tables.reserve(worker, 2, keys(2))
    freed, written = tables.file.log[before:]
    assert freed == FreeHeader(slot)
    assert isinstance(written, WriteHeader)
    assert written.record.slot == slot


def test_a_prefix_outlives_its_suffix():
    tables = Tables()
    worker = tables.worker()
    tables.store(worker, 1, keys(*range(8)))
    for number in range(100, 104):
        tables.store(worker, number, keys(number))
    assert tables.stored() == {0, 1, 2, 3, 100, 101, 102, 103}


def test_a_prefix_outlives_its_suffix_when_chunks_are_committed_out_of_order():
    tables = Tables()
    worker = tables.worker()
    grants = tables.reserve(worker, 1, keys(0, 1, 2, 3))
    for i in (3, 0, 2, 1):
        tables.wait(1.0)
        tables.commit(worker, 1, grants[i].generation)
    tables.store(worker, 2, keys(10, 11, 12, 13, 14, 15))
    assert tables.stored() == {0, 1, 10, 11, 12, 13, 14, 15}


def test_a_prefix_outlives_a_suffix_stored_by_another_operation():
    tables = Tables()
    worker = tables.worker()
    tables.store(worker, 1, keys(0, 1))
    tables.store(worker, 2, keys(2, 3), depth=2, parent=key(1))
    tables.store(worker, 3, keys(10, 11, 12, 13))
    tables.store(worker, 4, keys(20, 21))
    assert tables.stored() == {0, 1, 10, 11, 12, 13, 20, 21}


def test_a_prefix_outlives_its_suffix_when_the_operation_expires_half_done():
    tables = Tables()
    worker = tables.worker()
    grants = tables.reserve(worker, 1, keys(0, 1, 2))
    tables.commit(worker, 1, grants[0].generation)
    tables.commit(worker, 1, grants[1].generation)
    tables.wait(31.0)
    tables.store(worker, 2, keys(10, 11, 12, 13, 14, 15))
    assert tables.stored() == {0, 10, 11, 12, 13, 14, 15}


def test_a_prefix_outlives_its_suffix_when_a_lease_is_released_front_first():
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(0, 1, 2, 3))
    tables.lookup(scheduler, 1, keys(0, 1, 2, 3))
    tables.core.release(scheduler, 1, 0, 2, tables.now)
    tables.core.release(scheduler, 1, 2, 4, tables.now)
    tables.store(worker, 2, keys(10, 11, 12, 13, 14, 15))
    assert tables.stored() == {0, 1, 10, 11, 12, 13, 14, 15}


def test_what_was_looked_up_outlives_what_was_not():
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    for number in range(8):
        tables.store(worker, number, keys(number))
    tables.lookup(scheduler, 1, keys(0))
    tables.core.end_session(scheduler, 1, tables.now)
    tables.store(worker, 10, keys(10))
    assert tables.stored() == {0, 2, 3, 4, 5, 6, 7, 10}


def test_leased_chunks_are_never_evicted():
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(*range(8)))
    assert tables.lookup(scheduler, 1, keys(*range(5))) == 5
    tables.read(worker, 2, keys(5, 6))
    grants = tables.reserve(worker, 3, keys(10, 11))
    assert statuses(grants) == [ReserveStatus.GRANTED, ReserveStatus.FULL]
    assert tables.stored() == {0, 1, 2, 3, 4, 5, 6}


def test_what_a_request_found_does_not_go_to_make_room_for_the_rest_of_it():
    tables = Tables(slab_chunks=2)
    worker = tables.worker()
    tables.store(worker, 1, keys(1))
    tables.store(worker, 2, keys(2))
    grants = tables.reserve(worker, 3, keys(1, 3, 2, 4))
    assert statuses(grants) == [ReserveStatus.EXISTS, ReserveStatus.FULL, ReserveStatus.FULL, ReserveStatus.FULL]
    assert tables.stored() == {1, 2}
    assert statuses(tables.reserve(worker, 4, keys(1, 3))) == [ReserveStatus.EXISTS, ReserveStatus.GRANTED]
    assert tables.stored() == {1}


policies = pytest.mark.parametrize("policy", POLICIES)


@policies
def test_an_operations_own_prefix_does_not_go(policy):
    tables = Tables(slab_chunks=4, eviction_policy=policy)
    worker = tables.worker()
    tables.store(worker, 1, keys(0, 1))
    tables.store(worker, 2, keys(10, 11))
    granted = tables.reserve(worker, 3, keys(2, 3), depth=2, parent=key(1))
    assert statuses(granted) == [ReserveStatus.GRANTED] * 2
    assert tables.stored() == {0, 1}
    more = tables.reserve(worker, 3, keys(2, 3, 4, 5), depth=2, parent=key(1))
    assert statuses(more) == [ReserveStatus.GRANTED] * 2 + [ReserveStatus.FULL] * 2
    assert tables.stored() == {0, 1}


@policies
@pytest.mark.parametrize("window", [1, 3])
def test_of_a_prompt_longer_than_the_pool_the_beginning_stays(policy, window):
    tables = Tables(eviction_policy=policy)
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(*range(100, 108)))
    for session in range(3):  # what is used more than what was just stored would outlive it
        assert tables.lookup(scheduler, session, keys(100, 101)) == 2
        tables.core.end_session(scheduler, session, tables.now)
    for first in range(0, 20, window):  # one operation each, as an engine stores what each of its steps computed
        wanted = keys(*range(first, min(first + window, 20)))
        tables.store(worker, 10 + first, wanted, depth=first, parent=key(first - 1) if first else b"")
    assert tables.stored() == set(range(8))


@policies
def test_what_a_rank_stores_leaves_the_other_ranks_parts_of_the_prompt(policy):
    tables = Tables(eviction_policy=policy)
    ranks = [tables.worker(f"rank {shard}", shard=shard, shard_count=2) for shard in range(2)]
    scheduler = tables.scheduler(shard_count=2)
    for number in range(20):
        for rank in ranks:
            tables.store(rank, number, keys(number), depth=number, parent=key(number - 1) if number else b"")
    assert tables.lookup(scheduler, 1, keys(*range(20))) == 4


def test_nothing_goes_for_a_chunk_whose_prefix_is_gone():
    tables = Tables(slab_chunks=2)
    worker = tables.worker()
    tables.store(worker, 1, keys(10))
    tables.store(worker, 2, keys(2), depth=2, parent=key(1))  # there is room
    assert statuses(tables.reserve(worker, 3, keys(5), depth=5, parent=key(4))) == [ReserveStatus.FULL]
    assert tables.stored() == {2, 10}
    assert statuses(tables.reserve(worker, 4, keys(5))) == [ReserveStatus.GRANTED]


def test_a_prefix_that_is_being_stored_is_there():
    tables = Tables(slab_chunks=4)
    worker = tables.worker()
    tables.store(worker, 1, keys(0, 1))
    tables.store(worker, 2, keys(10))
    assert statuses(tables.reserve(worker, 3, keys(2), depth=2, parent=key(1))) == [ReserveStatus.GRANTED]
    assert statuses(tables.reserve(worker, 4, keys(3), depth=3, parent=key(2))) == [ReserveStatus.GRANTED]
    assert statuses(tables.reserve(worker, 5, keys(4), depth=4, parent=key(3))) == [ReserveStatus.FULL]
    assert tables.stored() == {0, 1}


def test_the_same_prompt_of_another_model_may_go():
    tables = Tables(slab_chunks=2)
    worker, other = tables.worker(), tables.worker("other", namespace=b"o" * 16)
    tables.store(other, 1, keys(0))
    tables.store(worker, 1, keys(0))
    assert statuses(tables.reserve(worker, 2, keys(1), depth=1, parent=key(0))) == [ReserveStatus.GRANTED]
    assert [one.namespace for one in tables.file.headers.values() if one.is_ready] == [NAMESPACE]


def test_a_ring_of_parents_does_not_hold_the_loop():
    tables = Tables()
    worker = tables.worker()
    tables.store(worker, 1, keys(1), parent=key(2))
    tables.store(worker, 2, keys(2), parent=key(1))
    tables.store(worker, 3, keys(*range(10, 17)), parent=key(2))
    assert len(tables.stored()) == 8


def test_lookups_that_stop_at_a_key_evicted_lately_are_counted():
    tables = Tables(slab_chunks=2)
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(1, 2))
    tables.store(worker, 2, keys(3))
    assert tables.lookup(scheduler, 1, keys(1, 2)) == 1
    assert tables.lookup(scheduler, 2, keys(1, 9)) == 1
    assert tables.core.counts.lookup_evicted_keys == 1


# -- two sizes


def two_sizes(num_slabs: int = 2) -> tuple[Tables, bytes, bytes]:
    tables = Tables(num_slabs=num_slabs, slab_chunks=8)
    return tables, tables.worker("narrow", **NARROW), tables.worker("wide", **WIDE)


def test_a_slot_is_as_large_as_its_chunk_rounded_up():
    tables = Tables(num_slabs=2, slab_chunks=8)
    worker = tables.worker(chunk_bytes=2 * CHUNK_BYTES + 1)
    grants = tables.reserve(worker, 1, keys(1, 2, 3))
    assert [grant.offset for grant in grants] == [0, 3 * CHUNK_BYTES, 8 * CHUNK_BYTES]
    assert tables.core.slot_counts()["writing_bytes"] == 9 * CHUNK_BYTES


def test_sizes_share_the_pool_in_whole_slabs():
    tables, narrow, wide = two_sizes()
    one = tables.reserve(narrow, 1, keys(1))[0]
    two = tables.reserve(wide, 1, keys(2, 3))
    assert one.offset // (8 * CHUNK_BYTES) != two[0].offset // (8 * CHUNK_BYTES)
    assert [grant.offset % (8 * CHUNK_BYTES) for grant in two] == [0, 4 * CHUNK_BYTES]


def test_a_size_takes_a_colder_slab_of_another_and_frees_its_headers_first():
    tables, narrow, wide = two_sizes()
    tables.store(narrow, 1, keys(*range(8)))
    tables.wait(1.0)
    tables.store(wide, 1, keys(20, 21))
    before = len(tables.file.log)
    tables.wait(1.0)
    tables.reserve(wide, 2, keys(22))
    effects = tables.file.log[before:]
    assert [type(effect) for effect in effects] == [FreeHeader] * 8 + [WriteHeader]
    assert tables.core.counts.evictions == {"slab": 8}
    assert tables.stored() == {20, 21}


def test_a_size_evicts_its_own_when_that_is_colder():
    tables, narrow, wide = two_sizes()
    tables.store(wide, 1, keys(20, 21))
    tables.wait(1.0)
    tables.store(narrow, 1, keys(*range(8)))
    tables.reserve(wide, 2, keys(22))
    assert tables.core.counts.evictions == {"capacity": 1}
    assert tables.stored() == {20, *range(8)}


def test_a_size_with_nothing_of_its_own_takes_the_coldest_slab_that_may_go():
    tables, narrow, wide = two_sizes(num_slabs=3)
    scheduler = tables.scheduler(namespace=NARROW["namespace"])
    for slab in range(3):
        tables.store(narrow, slab, keys(*range(8 * slab, 8 * slab + 8)))
        tables.wait(1.0)
    tables.lookup(scheduler, 1, keys(3), namespace=NARROW["namespace"])  # the coldest slab has a leased chunk
    granted = tables.reserve(wide, 1, keys(100))
    assert statuses(granted) == [ReserveStatus.GRANTED]
    assert tables.stored() == {*range(8), *range(16, 24)}


def test_a_slab_with_one_held_chunk_stays():
    tables, narrow, wide = two_sizes(num_slabs=1)
    tables.store(narrow, 1, keys(*range(7)))
    held = tables.reserve(narrow, 2, keys(7))[0]
    assert statuses(tables.reserve(wide, 1, keys(100))) == [ReserveStatus.FULL]
    tables.wait(31.0)  # quarantined: its owner may still write
    assert statuses(tables.reserve(wide, 1, keys(100))) == [ReserveStatus.FULL]
    assert tables.stored() == set(range(7))
    tables.abort(narrow, 2, held.generation)
    assert statuses(tables.reserve(wide, 1, keys(100))) == [ReserveStatus.GRANTED]


def test_an_empty_slab_serves_any_size_again():
    tables, narrow, wide = two_sizes(num_slabs=1)
    tables.reserve(narrow, 1, keys(1))
    tables.abort(narrow, 1)
    assert statuses(tables.reserve(wide, 1, keys(2, 3))) == [ReserveStatus.GRANTED] * 2
    assert tables.core.counts.evictions == {}
