import tracemalloc

from gateway.core.policy.choice import new_order
from gateway.core.policy.lfu import LeastFrequentlyUsed
from tests.unit.core.tables import Tables, key, keys


def one_request(tables, number, wanted):
    """What an engine does: look up, read, store the rest, end; the lookup is asked twice."""
    worker, scheduler = b"w".rjust(16, b"\0"), b"s".rjust(16, b"\0")
    tables.lookup(scheduler, number, wanted)
    found = tables.lookup(scheduler, number, wanted)
    if found:
        tables.read(worker, number, wanted[:found])
        tables.core.end_read(worker, number, tables.now)
    if found < len(wanted):
        tables.store(worker, number, wanted[found:], depth=found, parent=wanted[found - 1] if found else b"")
    tables.core.end_session(scheduler, number, tables.now)
    tables.settle()
    return found


def own_words(*numbers):
    """Keys that fall on a word of the memory each, unless they are alike modulo its size."""
    return tuple(number.to_bytes(8, "big") + bytes(16) + (number << 8).to_bytes(8, "big") for number in numbers)


def tables_with_engine(**facts):
    tables = Tables(**facts)
    tables.worker()
    tables.scheduler()
    return tables


def test_prompts_that_come_once_do_not_push_out_one_that_came_twice():
    found = {}
    for policy in ("lfu", "lru"):
        tables = tables_with_engine(eviction_policy=policy)
        one_request(tables, 1, keys(1, 2))
        one_request(tables, 2, keys(1, 2))
        for number in range(3, 9):
            one_request(tables, number, keys(2 * number, 2 * number + 1))
        found[policy] = one_request(tables, 20, keys(1, 2))
    assert found == {"lfu": 2, "lru": 0}


def test_what_was_used_often_leaves_in_the_end():
    tables = tables_with_engine()
    for number in range(1, 20):
        one_request(tables, number, keys(1, 2))
    for number in range(20, 300):
        one_request(tables, number, keys(2 * number, 2 * number + 1))
    assert tables.stored().isdisjoint({1, 2})


def test_what_comes_back_after_it_was_evicted_counts_as_used_before():
    tables = tables_with_engine(slab_chunks=4)
    one_request(tables, 1, own_words(1, 2))
    for number in (3, 5):
        one_request(tables, number, own_words(number, number + 1))
    assert one_request(tables, 7, own_words(1, 2)) == 0  # it had to go
    for number in (11, 13):
        one_request(tables, number, own_words(number, number + 1))
    assert one_request(tables, 15, own_words(1, 2)) == 2


def test_one_request_is_one_use_however_often_it_asks_and_reads():
    """Two that came once, one of which asked and read more often: the one that is older goes."""
    order = LeastFrequentlyUsed(num_slots=4, capacity=4)
    for slot in (0, 1):
        order.add(slot, key(slot))
    order.use(1)
    order.hold(1)
    order.release(1)
    assert list(order) == [0, 1]

    tables = tables_with_engine(slab_chunks=4)
    one_request(tables, 1, keys(1))
    one_request(tables, 2, keys(2))
    one_request(tables, 3, keys(1))  # two lookups and a read of 1, one use
    tables.wait(1.0)
    assert tables.lookup(b"s".rjust(16, b"\0"), 4, keys(2)) == 1  # once, and does not read
    tables.core.end_session(b"s".rjust(16, b"\0"), 4, tables.now)
    one_request(tables, 5, keys(3, 4, 5))
    assert 2 in tables.stored()
    assert 1 not in tables.stored()


def test_a_lost_memory_does_not_leave_a_cold_chunk_before_hot_ones():
    order = LeastFrequentlyUsed(num_slots=8, capacity=8)
    order.add(0, key(1))
    order.add(1, key(2))
    order.use(1)
    order.add(2, key(3))
    order.touch(1)
    order.touch(0, behind=1)
    assert list(order) == [2, 1, 0]


def test_an_entry_of_the_memory_is_overwritten_by_the_next_and_believed_for_its_own_key_only():
    order = LeastFrequentlyUsed(num_slots=2, capacity=1)
    one, other = bytes(24) + b"\x01" * 8, bytes(24) + b"\x02" * 8
    order.add(0, one)
    order.use(0)
    order.evict(0, one)
    order.add(0, other)  # the same word, another key: used once
    order.add(1, one)  # used three times
    assert list(order) == [0, 1]
    order.evict(0, other)
    order.remove(1)
    order.add(1, one)  # forgotten
    order.add(0, other)  # used twice
    assert list(order) == [1, 0]


def test_a_warm_start_begins_with_prefixes_hotter_than_suffixes_and_learns_from_there():
    tables = tables_with_engine()
    one_request(tables, 1, keys(1, 2, 3))
    one_request(tables, 2, keys(11, 12, 13))
    tables.restart()
    tables.worker()
    tables.scheduler()
    assert one_request(tables, 1, keys(1, 2, 3)) == 3
    for number in range(2, 8):
        one_request(tables, number, keys(10 * number + 5, 10 * number + 6))
    assert tables.stored() >= {1, 2, 3}


def bytes_a_slot(policy):
    num_slots = 20_000
    tracemalloc.start()
    try:
        order = new_order(policy, num_slots, num_slots)
        order.adopt(range(num_slots))
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(order) == num_slots
    return used_bytes / num_slots


def test_a_slot_costs_little_memory_more_than_with_lru():
    lfu, lru = bytes_a_slot("lfu"), bytes_a_slot("lru")
    assert lfu <= 160
    assert lfu - lru <= 20  # two words, its uses, its shelf
