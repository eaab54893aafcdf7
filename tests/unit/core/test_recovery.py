import time

import pytest

from gateway.core.core import Core
from gateway.core.types import CoreConfig, NamespaceRecord, PoolFacts, SlotRecord
from gateway.wire.codes import ReserveStatus, Role
from tests.unit.core.tables import CHUNK_BYTES, NAMESPACE, POOL_ID, Tables, found, key, keys, party_id


def test_committed_chunks_come_back_and_new_generations_are_higher():
    tables = Tables()
    slots = tables.store(tables.worker(), 1, keys(1, 2, 3))
    old = max(record.generation for record in tables.file.headers.values())
    assert tables.restart() == 3
    assert tables.counts() == (3, 0, 0)
    assert tables.core.namespace_usage()[0][0].model == "m"
    worker, scheduler = tables.worker("new"), tables.scheduler()
    assert tables.lookup(scheduler, 1, keys(1, 2, 3)) == 3
    assert [one.slot for one in tables.read(worker, 1, keys(1, 2, 3))] == slots
    assert tables.reserve(worker, 2, keys(4))[0].generation > old


def test_a_slot_being_written_is_quarantined_until_its_owner_is_proven_dead():
    tables = Tables(slab_chunks=2)
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    assert tables.restart() == 0
    assert tables.counts() == (0, 0, 1)
    assert tables.core.owners() == {worker}
    other = tables.worker("other", replicas=2, replica=1)
    statuses = [one.status for one in tables.reserve(other, 1, keys(1, 2))]
    assert statuses == [ReserveStatus.GRANTED, ReserveStatus.FULL]  # its key is free, its slot is not
    tables.die(worker)
    assert tables.counts() == (0, 1, 0)
    assert tables.core.counts.deaths == 0  # it had not registered with this boot


def test_a_slot_being_written_is_freed_when_its_owner_says_it_holds_nothing():
    tables = Tables()
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    tables.restart()
    tables.register(tables.spec("w"), holds_nothing=False)
    assert tables.counts() == (0, 0, 1)
    tables.heartbeat(worker, next_operation=100)  # an older boot's slot has no operation here
    tables.abort(worker, 1)
    assert tables.counts() == (0, 0, 1)
    tables.reserve(worker, 1, keys(2))
    tables.register(tables.spec("w"), holds_nothing=True)
    assert tables.counts() == (0, 1, 0)


def test_an_older_boots_generation_cannot_be_committed():
    tables = Tables()
    worker = tables.worker()
    generation = tables.reserve(worker, 1, keys(1))[0].generation
    tables.restart()
    tables.register(tables.spec("w"), holds_nothing=False)
    assert tables.commit(worker, 1, generation) == ("unknown",)
    assert tables.counts() == (0, 0, 1)


def test_after_a_restart_a_prefix_still_outlives_its_suffix():
    tables = Tables()
    tables.store(tables.worker(), 1, keys(0, 1, 2, 3))
    tables.restart()
    worker, scheduler = tables.worker("new"), tables.scheduler()
    tables.store(worker, 1, keys(*range(10, 16)))
    assert tables.stored() == {0, 1, *range(10, 16)}
    tables.lookup(scheduler, 1, keys(0, 1))  # teaches that 0 comes before 1
    tables.core.end_session(scheduler, 1, tables.now)
    tables.store(worker, 2, keys(2), depth=2, parent=key(1))
    tables.store(worker, 3, keys(*range(20, 25)))
    assert {0, 1, 2} <= tables.stored()


def header(slot: int, **facts) -> SlotRecord:
    values = {
        "slot": slot,
        "is_ready": True,
        "owner": party_id("w"),
        "namespace": NAMESPACE,
        "key": key(slot),
        "shard": 0,
        "depth": 0,
        "extent": CHUNK_BYTES,
        "payload_bytes": CHUNK_BYTES,
        "generation": (1 << 40) + slot + 1,
        "clear_epoch": 0,
    }
    return SlotRecord(**{**values, **facts})


def recover(*headers: SlotRecord) -> Tables:
    tables = Tables(num_slabs=2, slab_chunks=8)
    tables.file.headers = {record.slot: record for record in headers}
    tables.file.namespaces[NAMESPACE] = NamespaceRecord(NAMESPACE, "m", 1, 256)
    tables.restart()
    return tables


@pytest.mark.parametrize(
    "wrong",
    [
        {"extent": CHUNK_BYTES + 1},
        {"extent": 16 * CHUNK_BYTES, "payload_bytes": 16 * CHUNK_BYTES},
        {"payload_bytes": 0},
        {"payload_bytes": CHUNK_BYTES + 1},
        {"extent": 2 * CHUNK_BYTES, "payload_bytes": 2 * CHUNK_BYTES},  # place 5 of 4
    ],
)
def test_a_header_that_cannot_be_is_freed(wrong):
    tables = recover(header(0), header(13, shard=1, **wrong))
    assert tables.counts()[0] == 1
    assert tables.stored() == {0}


def test_no_two_slots_have_one_generation_and_none_has_one_of_this_boot():
    own = {"generation": 7}
    writing = {"generation": 8}
    tables = recover(
        header(0),
        header(1, **own),
        header(2, **own),
        header(3, is_ready=False, **writing),
        header(4, **writing),
        header(5, generation=2 << 40),
    )
    assert tables.counts() == (2, 0, 1)
    assert tables.stored() == {0, 1}


def test_slots_of_one_slab_have_one_size_and_writing_ones_say_which():
    wide = {"extent": 2 * CHUNK_BYTES, "payload_bytes": 2 * CHUNK_BYTES}
    tables = recover(header(0), header(1, is_ready=False, **wide), header(8))
    assert tables.counts() == (1, 0, 1)
    assert tables.stored() == {8}


def test_of_two_slots_with_one_key_the_newer_is_kept():
    tables = recover(header(0, key=key(9)), header(3, key=key(9)), header(1, key=key(9), is_ready=False))
    assert tables.counts() == (1, 0, 1)
    assert 3 in tables.file.headers
    assert 0 not in tables.file.headers


def test_of_two_sizes_in_one_group_the_newer_is_kept():
    wide = {"extent": 2 * CHUNK_BYTES, "payload_bytes": 2 * CHUNK_BYTES}
    tables = recover(header(0), header(8, **wide))
    assert tables.stored() == {8}


def test_holes_between_recovered_slots_are_used():
    tables = recover(header(1), header(4), header(7))
    granted = tables.reserve(tables.worker(), 1, keys(*range(100, 113)))
    assert {one.slot for one in granted} == {0, 2, 3, 5, 6, *range(8, 16)}


def test_a_hundred_thousand_chunks_are_there_at_once():
    per_slab = 256
    facts = PoolFacts(POOL_ID, 2, 0, 400, per_slab * CHUNK_BYTES, per_slab, CHUNK_BYTES)
    headers = found(header(slot, depth=slot % 128) for slot in range(100_000))
    core = Core(CoreConfig(), boot=b"b" * 16, now=0.0, wall=0.0)
    began = time.process_time()
    assert core.open_pool(facts, headers, [NamespaceRecord(NAMESPACE, "m", 1, 256)], 0.0) == 100_000
    assert time.process_time() - began < 3.0  # a quarter of a second on an idle machine
    core.init_done(0.0)
    tables = Tables()
    core.register(tables.spec("s", role=Role.SCHEDULER), lock_held=True, holds_nothing=True, now=0.0, wall=0.0)
    wanted = tuple(key(slot) for slot in range(128))
    assert core.lookup(party_id("s"), 1, NAMESPACE, wanted, 0.0, 0.0).chunks == 128
