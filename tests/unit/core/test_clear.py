import pytest

from gateway.core.types import FreeHeader, Refusal, WriteClearEpoch, WriteNamespace
from gateway.wire.codes import CommitStatus, ErrorCode
from tests.unit.core.tables import CHUNK_BYTES, NAMESPACE, Tables, keys

OTHER = b"o" * 16


def two_models() -> tuple[Tables, bytes, bytes]:
    tables = Tables()
    one, other = tables.worker("one"), tables.worker("other", namespace=OTHER, model="other")
    tables.store(one, 1, keys(1, 2))
    tables.store(other, 1, keys(11, 12))
    return tables, one, other


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ({"model": "m"}, {11, 12}),
        ({"namespace": OTHER}, {1, 2}),
        ({"everything": True}, set()),
    ],
)
def test_what_is_named_leaves_and_nothing_else(what, left):
    tables, _, _ = two_models()
    trial = tables.clear(**what, dry_run=True)
    assert tables.stored() == {1, 2, 11, 12}
    result = tables.clear(**what)
    assert result == trial
    assert (result.chunks, result.bytes, result.held_chunks) == (4 - len(left), (4 - len(left)) * CHUNK_BYTES, 0)
    assert tables.stored() == left
    assert tables.core.counts.evictions == ({"cleared": 4 - len(left)} if len(left) < 4 else {})


@pytest.mark.parametrize("what", [{}, {"model": "m", "everything": True}, {"namespace": b"short"}])
def test_a_clear_of_nothing_or_of_two_things_is_refused(what):
    tables, _, _ = two_models()
    with pytest.raises(Refusal) as refused:
        tables.clear(**what)
    assert refused.value.code is ErrorCode.INVALID
    assert tables.stored() == {1, 2, 11, 12}


@pytest.mark.parametrize(
    ("what", "known"),
    [({"model": "typo"}, "m, other"), ({"namespace": b"t" * 16}, f"{NAMESPACE.hex()}, {OTHER.hex()}")],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_nobody_knows_is_refused_with_what_is_known(what, known, dry_run):
    tables, _, _ = two_models()
    with pytest.raises(Refusal) as refused:
        tables.clear(**what, dry_run=dry_run)
    assert refused.value.code is ErrorCode.NOT_FOUND
    assert refused.value.message.endswith(f"known are: {', '.join(sorted(known.split(', ')))}")
    assert tables.stored() == {1, 2, 11, 12}


def test_an_empty_pool_can_be_cleared_of_everything():
    assert Tables().clear(everything=True).chunks == 0


def test_the_epoch_goes_up_first():
    tables, _, _ = two_models()
    before = len(tables.file.log)
    tables.clear(model="m")
    kinds = [type(effect) for effect in tables.file.log[before:]]
    assert kinds == [WriteClearEpoch, WriteNamespace, FreeHeader, FreeHeader]


def test_what_is_being_stored_when_a_clear_comes_is_not_published():
    tables, one, other = two_models()
    mine = tables.reserve(one, 2, keys(3))[0].generation
    theirs = tables.reserve(other, 2, keys(13))[0].generation
    tables.clear(model="m")
    assert tables.commit(one, 2, mine) == (CommitStatus.CLEARED,)
    assert tables.commit(other, 2, theirs) == (CommitStatus.COMMITTED,)
    tables.store(one, 3, keys(3))
    assert tables.stored() == {3, 11, 12, 13}


def test_leased_chunks_leave_at_once_and_are_freed_by_their_last_release():
    tables, one, _ = two_models()
    scheduler = tables.scheduler()
    tables.lookup(scheduler, 1, keys(1, 2))
    tables.read(one, 5, keys(1))
    result = tables.clear(everything=True)
    assert (result.chunks, result.held_chunks) == (4, 2)
    assert tables.lookup(scheduler, 2, keys(1)) == 0
    assert tables.read(one, 6, keys(1))[0].slot == -1
    assert tables.counts() == (2, 0, 0)
    tables.core.end_session(scheduler, 1, tables.now)
    tables.settle()
    assert tables.counts() == (1, 0, 0)  # the retrieve still reads it
    tables.store(one, 7, keys(1))
    tables.end_read(one, 5)
    assert tables.counts() == (1, 0, 0)
    assert tables.lookup(scheduler, 3, keys(1)) == 1


def test_what_was_cleared_while_leased_does_not_come_back_with_a_restart():
    tables, one, _ = two_models()
    tables.read(one, 5, keys(1))
    tables.clear(namespace=NAMESPACE)
    tables.store(one, 6, keys(3))
    assert tables.stored() == {1, 3, 11, 12}  # the reader's header stands until it has read
    assert tables.restart() == 3
    assert tables.stored() == {3, 11, 12}


def test_a_crash_in_the_middle_of_a_clear_gives_nothing_cleared_back():
    tables, _, _ = two_models()
    tables.core.clear(model="m", namespace=b"", all=False, dry_run=False, now=tables.now)
    tables.file.apply(tables.core.take_effects()[:2])  # the epochs, and no header yet
    assert tables.stored() == {1, 2, 11, 12}
    assert tables.restart() == 2
    assert tables.stored() == {11, 12}


def test_a_namespace_the_file_forgot_is_cleared_by_the_last_clear_of_any():
    tables, _, _ = two_models()
    tables.file.namespaces.clear()
    assert tables.restart() == 4
    tables.file.clear_epoch = 1
    assert tables.restart() == 0
