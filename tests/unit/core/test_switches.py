"""What a switch forbids in the tables, whatever the state."""

import pytest

from gateway.core.types import Refusal
from gateway.wire.codes import ErrorCode, Lifecycle, SwitchMode, strictest
from tests.unit.core.tables import Tables, keys

ON, NO_STORE, NO_LOAD, OFF = SwitchMode


def serving() -> tuple[Tables, bytes, bytes]:
    tables = Tables()
    worker, scheduler = tables.worker(), tables.scheduler()
    tables.store(worker, 1, keys(1))
    return tables, worker, scheduler


def obey(tables: Tables, mode: SwitchMode) -> None:
    tables.core.obey(lambda model, engine: mode if (model, engine) == ("m", "e") else ON)


@pytest.mark.parametrize("mode", SwitchMode)
def test_each_mode_forbids_what_it_says_and_nothing_else(mode: SwitchMode) -> None:
    tables, worker, scheduler = serving()
    obey(tables, mode)
    assert tables.lookup(scheduler, 1, keys(1)) == (1 if mode.loads else 0)
    for may, step in (
        (mode.stores, lambda: tables.reserve(worker, 2, keys(2))),
        (mode.loads, lambda: tables.read(worker, 3, keys(1))),
    ):
        if may:
            assert step()
            continue
        with pytest.raises(Refusal) as refused:
            step()
        assert refused.value.code is ErrorCode.OFF
        assert mode in refused.value.message
    assert tables.heartbeat(worker).switch is mode


def test_another_engine_goes_on() -> None:
    tables, _, _ = serving()
    obey(tables, OFF)
    other = tables.worker("other", engine="another")
    assert tables.read(other, 1, keys(1))
    assert tables.heartbeat(other).switch is ON


def test_what_was_granted_ends_as_it_would() -> None:
    tables, worker, _ = serving()
    (grant,) = tables.reserve(worker, 2, keys(2))
    tables.read(worker, 3, keys(1))
    obey(tables, OFF)
    assert tables.commit(worker, 2, grant.generation) == ("committed",)
    assert tables.read(worker, 3, keys(1)), "repeating it gives the same answer"
    tables.end_read(worker, 3)
    assert tables.stored() == {1, 2}


def test_drain_and_resume_do_not_end_it() -> None:
    tables, worker, scheduler = serving()
    obey(tables, OFF)
    tables.drain()
    tables.resume()
    assert tables.core.state is Lifecycle.READY
    assert tables.lookup(scheduler, 1, keys(1)) == 0
    with pytest.raises(Refusal):
        tables.reserve(worker, 2, keys(2))


@pytest.mark.parametrize(
    ("modes", "together"),
    [
        ([], ON),
        ([ON, ON], ON),
        ([NO_STORE, ON], NO_STORE),
        ([NO_LOAD, NO_LOAD], NO_LOAD),
        ([NO_STORE, NO_LOAD], OFF),
        ([ON, OFF, NO_LOAD], OFF),
    ],
)
def test_together_they_allow_what_all_allow(modes: list[SwitchMode], together: SwitchMode) -> None:
    assert strictest(modes) is together
    assert strictest(reversed(modes)) is together
    assert together.stores == all(mode.stores for mode in modes)
    assert together.loads == all(mode.loads for mode in modes)
