from dataclasses import replace

import pytest

from gateway.core.types import Refusal, WriteNamespace
from gateway.wire.codes import ErrorCode, Lifecycle, Role
from tests.unit.core.tables import CHUNK_BYTES, NAMESPACE, Tables, keys, party_id


def refusal(tables: Tables, spec, **how) -> ErrorCode:
    with pytest.raises(Refusal) as refused:
        tables.register(spec, **how)
    assert tables.settle() == []
    return refused.value.code


def test_a_party_whose_lock_is_not_seen_held_is_refused():
    tables = Tables()
    assert refusal(tables, tables.spec("w"), lock_held=False) is ErrorCode.LOCK_NOT_HELD
    assert tables.core.party_states() == []


@pytest.mark.parametrize(
    "facts",
    [
        {"party": b"short"},
        {"engine": ""},
        {"engine": "a b"},
        {"engine": "x" * 64},
        {"group": ""},
        {"model": ""},
        {"model": "m" * 257},
        {"software": "s" * 257},
        {"namespace": b"short"},
        {"namespace": b""},
        {"shard": 1},
        {"shard": -1},
        {"shard_count": 0},
        {"shard_count": 5000},
        {"replica": 2, "replicas": 2},
        {"chunk_bytes": 0},
        {"chunk_tokens": 0},
    ],
)
def test_facts_that_make_no_sense_are_refused(facts):
    tables = Tables()
    assert refusal(tables, tables.spec("w", **facts)) is ErrorCode.INVALID


def test_a_chunk_larger_than_a_slab_is_refused_with_both_numbers():
    tables = Tables(slab_chunks=8)
    with pytest.raises(Refusal) as refused:
        tables.worker(chunk_bytes=8 * CHUNK_BYTES + 1)
    assert refused.value.code is ErrorCode.GEOMETRY
    assert str(8 * CHUNK_BYTES + 1) in refused.value.message
    assert str(8 * CHUNK_BYTES) in refused.value.message


def test_registering_again_frees_nothing_of_this_boot():
    tables = Tables()
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    tables.store(worker, 2, keys(2))
    tables.read(worker, 3, keys(2))
    tables.worker()
    tables.worker(software="another version")
    assert tables.counts() == (1, 1, 0)
    assert tables.core.lease_counts() == (0, 1, 1)


@pytest.mark.parametrize(
    "facts", [{"pid": 7}, {"engine": "other"}, {"chunk_bytes": 8}, {"namespace": b"?" * 16}, {"shard_count": 2}]
)
def test_a_live_id_with_other_facts_is_a_collision(facts):
    tables = Tables()
    tables.worker()
    assert refusal(tables, tables.spec("w", **facts)) is ErrorCode.COLLISION


def test_a_scheduler_may_name_its_namespace_later_and_then_keeps_it():
    tables = Tables()
    tables.scheduler(namespace=b"")
    tables.scheduler(namespace=NAMESPACE)
    assert refusal(tables, tables.spec("s", role=Role.SCHEDULER, namespace=b"?" * 16)) is ErrorCode.COLLISION


def test_parties_of_a_namespace_agree_on_its_shape():
    tables = Tables()
    tables.worker()
    assert refusal(tables, tables.spec("x", chunk_bytes=2 * CHUNK_BYTES)) is ErrorCode.GEOMETRY
    assert refusal(tables, tables.spec("x", shard_count=2, shard=1)) is ErrorCode.GEOMETRY
    tables.worker("far", namespace=b"f" * 16, chunk_bytes=2 * CHUNK_BYTES)


def test_chunks_of_a_size_that_nobody_has_any_more_are_evicted():
    tables = Tables()
    worker = tables.worker()
    tables.store(worker, 1, keys(1, 2))
    tables.die(worker)
    new = tables.worker("new", chunk_bytes=2 * CHUNK_BYTES)
    assert tables.stored() == set()
    assert tables.core.counts.evictions == {"geometry": 2}
    tables.store(new, 1, keys(1))
    assert tables.core.namespace_usage()[0][1:3] == (1, 2 * CHUNK_BYTES)


def test_a_reservation_of_an_older_size_is_not_published():
    tables = Tables()
    worker = tables.worker()
    generation = tables.reserve(worker, 1, keys(1))[0].generation
    tables.core.unregister(worker, tables.now)
    tables.settle()
    tables.worker(chunk_bytes=2 * CHUNK_BYTES)  # the same party, of another shape now
    assert tables.commit(worker, 1, generation) == ("cleared",)
    assert tables.counts() == (0, 0, 0)


def test_a_namespace_is_remembered_once_and_again_when_it_changes():
    tables = Tables()
    tables.worker()
    tables.worker("other", replica=1, replicas=2)
    tables.scheduler(model="renamed")
    written = [effect.record for effect in tables.file.log if isinstance(effect, WriteNamespace)]
    assert [(one.namespace, one.model, one.shard_count, one.chunk_tokens) for one in written] == [
        (NAMESPACE, "m", 1, 256),
        (NAMESPACE, "renamed", 1, 256),
    ]


def test_there_is_a_bound_on_parties():
    tables = Tables(max_parties=2)
    tables.worker("a")
    tables.worker("b")
    assert refusal(tables, tables.spec("c")) is ErrorCode.LIMIT
    tables.worker("a")
    tables.die(party_id("b"))
    tables.worker("c")


def test_unknown_parties_and_wrong_halves_are_refused():
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    for step in (tables.reserve, tables.read):
        with pytest.raises(Refusal) as refused:
            step(b"?" * 16, 1, keys(1))
        assert refused.value.code is ErrorCode.UNKNOWN_PARTY
        with pytest.raises(Refusal) as refused:
            step(scheduler, 1, keys(1))
        assert refused.value.code is ErrorCode.INVALID
    with pytest.raises(Refusal) as refused:
        tables.lookup(worker, 1, keys(1))
    assert refused.value.code is ErrorCode.INVALID


def test_a_heartbeat_of_an_unknown_party_and_a_probe_are_answered():
    tables = Tables()
    for party in (b"", b"?" * 16):
        view = tables.heartbeat(party)
        assert (view.known, view.state) == (False, Lifecycle.READY)
    worker = tables.worker()
    tables.wait(5.0)
    assert tables.heartbeat(worker).known
    (state,) = tables.core.party_states()
    assert (state.registered_at, state.last_heartbeat_at) == (tables.wall - 5.0, tables.wall)
    with pytest.raises(Refusal) as refused:
        tables.heartbeat(worker, next_operation=-1)
    assert refused.value.code is ErrorCode.INVALID


# -- fences


def test_a_fence_takes_registrations_away_and_keeps_slots_until_death():
    tables = Tables()
    worker, scheduler, other = tables.worker(), tables.scheduler(), tables.worker("other", engine="f", replicas=2)
    tables.store(worker, 1, keys(1))
    generation = tables.reserve(worker, 2, keys(2))[0].generation
    tables.lookup(scheduler, 1, keys(1))
    tables.read(worker, 3, keys(1))
    tables.core.fence("e", tables.now)
    tables.settle()

    assert tables.counts() == (1, 0, 1)
    assert tables.core.lease_counts() == (0, 0, 0)
    assert tables.core.engine_states() == {"e": (Lifecycle.DRAINED, True), "f": (Lifecycle.READY, False)}
    assert tables.core.owners() == {worker, scheduler, other}
    assert not tables.heartbeat(worker).known
    for step in (
        lambda: tables.reserve(worker, 4, keys(4)),
        lambda: tables.commit(worker, 2, generation),
        lambda: tables.abort(worker, 2),
        lambda: tables.lookup(scheduler, 2, keys(1)),
        tables.worker,
        lambda: tables.worker("newcomer"),
    ):
        with pytest.raises(Refusal) as refused:
            step()
        assert refused.value.code is ErrorCode.FENCED
    assert tables.counts() == (1, 0, 1)

    tables.die(worker)
    assert tables.counts() == (1, 0, 0)
    assert refusal(tables, tables.spec("newcomer")) is ErrorCode.FENCED  # its scheduler may still live
    tables.die(scheduler)
    tables.worker("newcomer")
    assert tables.core.engine_states()["e"] == (Lifecycle.READY, False)
    assert tables.core.counts.deaths == 2


def test_resuming_a_fenced_engine_lets_its_parties_come_back():
    tables = Tables()
    worker = tables.worker()
    tables.reserve(worker, 1, keys(1))
    tables.core.fence("e", tables.now)
    tables.core.resume_engine("e", tables.now)
    tables.worker()
    assert tables.counts() == (0, 0, 1)
    tables.heartbeat(worker, next_operation=2)
    assert tables.counts() == (0, 0, 0)


def test_operators_cannot_name_an_engine_that_is_not_there():
    tables = Tables()
    for step in (
        lambda: tables.core.fence("x", tables.now),
        lambda: tables.core.drain_engine("x", None, tables.now),
        lambda: tables.core.resume_engine("x", tables.now),
    ):
        with pytest.raises(Refusal) as refused:
            step()
        assert refused.value.code is ErrorCode.NOT_FOUND


def test_a_spec_is_compared_as_a_whole():
    tables = Tables()
    spec = tables.spec("w")
    tables.register(spec)
    assert refusal(tables, replace(spec, chunk_tokens=512)) is ErrorCode.COLLISION
