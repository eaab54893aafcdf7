"""Namespaces come and go for ever: as many are known as the pool file can name."""

import pytest

from gateway.core import namespaces
from gateway.core.types import Refusal
from gateway.wire.codes import ErrorCode
from tests.unit.core.tables import Tables, keys

MOST = 3


@pytest.fixture(autouse=True)
def _small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "MAX_NAMESPACES", MOST)


def name(number: int) -> bytes:
    return b"%016d" % number


def known(tables: Tables) -> set[bytes]:
    return {record.namespace for record, *_ in tables.core.namespace_usage()}


def served(tables: Tables, number: int, *, stores: bool) -> bytes:
    """An engine of another namespace comes, and stores a chunk if it is to."""
    party = tables.worker(f"w{number}", namespace=name(number))
    if stores:
        tables.store(party, 1, keys(number))
    return party


def test_empty_ones_that_nobody_uses_are_forgotten_first():
    tables = Tables()
    served(tables, 0, stores=True)
    for number in range(1, 40):
        tables.die(served(tables, number, stores=False))
        assert len(known(tables)) <= MOST
    assert name(0) in known(tables)
    assert tables.stored() == {0}


def test_of_full_ones_that_nobody_uses_the_one_hit_longest_ago_goes_with_its_chunks():
    tables = Tables()
    for number in range(MOST):
        tables.die(served(tables, number, stores=True))
    tables.wait(1.0)
    scheduler = tables.scheduler("s", namespace=name(0))
    assert tables.lookup(scheduler, 1, keys(0), namespace=name(0)) == 1
    tables.die(scheduler)

    served(tables, 10, stores=True)

    assert len(known(tables)) == MOST
    assert name(0) in known(tables)
    assert tables.stored() == {0, 2, 10}
    tables.core.check()


def test_those_of_live_parties_and_of_unfinished_stores_stay():
    tables = Tables()
    served(tables, 0, stores=False)
    writer = served(tables, 1, stores=False)
    tables.reserve(writer, 1, keys(1))
    tables.core.unregister(writer, tables.now)  # its slot is in quarantine: it may still be written
    tables.settle()
    served(tables, 2, stores=False)
    with pytest.raises(Refusal) as refused:
        served(tables, 3, stores=False)
    assert refused.value.code is ErrorCode.LIMIT
    assert known(tables) == {name(0), name(1), name(2)}


def test_one_that_comes_back_after_it_was_forgotten_brings_nothing_of_before_a_clear():
    tables = Tables()
    writer = served(tables, 0, stores=True)
    nameless = tables.scheduler("s", namespace=b"")
    assert tables.lookup(nameless, 1, keys(0), namespace=name(0)) == 1
    tables.clear(everything=True)  # the slot is READY in the file until its reader lets it go
    tables.die(writer)
    for number in range(1, 10):
        tables.die(served(tables, number, stores=False))
    assert name(0) not in known(tables)
    served(tables, 0, stores=False)

    assert tables.restart() == 0
