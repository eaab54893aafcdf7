import pytest

from gateway.core.lifecycle import TABLE, Action, Event, IllegalStep, step
from gateway.core.types import Refusal
from gateway.wire.codes import ErrorCode, Lifecycle
from tests.unit.core.tables import Tables, found, keys

S = Lifecycle

#: The contract, state by state: event -> (state after, action). What is not here must be refused.
CONTRACT = {
    S.STARTING: {Event.INIT_DONE: (S.READY, Action.NOTHING), Event.SIGNAL: (S.STOPPING, Action.NOTHING)},
    S.READY: {
        Event.DRAIN: (S.DRAINING, Action.BEGIN),
        Event.SIGNAL: (S.DRAINING, Action.BEGIN),
        Event.RESUME: (S.READY, Action.NOTHING),
    },
    S.DRAINING: {
        Event.DRAIN: (S.DRAINING, Action.JOIN),
        Event.SIGNAL: (S.DRAINING, Action.JOIN),
        Event.EMPTIED: (S.DRAINED, Action.COMPLETE),
        Event.DEADLINE: (S.DRAINED, Action.CUT_LATE),
        Event.FORCE: (S.DRAINED, Action.CUT_NOW),
        Event.RESUME: (S.READY, Action.CANCEL),
    },
    S.DRAINED: {
        Event.DRAIN: (S.DRAINED, Action.NOTHING),
        Event.RESUME: (S.READY, Action.NOTHING),
        Event.EXIT: (S.STOPPING, Action.NOTHING),
        Event.SIGNAL: (S.STOPPING, Action.NOTHING),
    },
    S.STOPPING: {Event.SIGNAL: (S.STOPPING, Action.NOTHING), Event.ENDED: (S.STOPPED, Action.NOTHING)},
    S.STOPPED: {},
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", Lifecycle)
def test_every_pair_of_state_and_event(state, event):
    before = dict(TABLE)
    expected = CONTRACT[state].get(event)
    if expected is not None:
        assert step(state, event) == expected
    else:
        with pytest.raises(IllegalStep) as refused:
            step(state, event)
        assert (refused.value.state, refused.value.event, refused.value.code) == (state, event, ErrorCode.CONFLICT)
    assert before == TABLE


def in_state(state: Lifecycle) -> Tables:
    tables = Tables(state=S.STARTING)
    if state is S.STARTING:
        return tables
    tables.core.init_done(tables.now)
    worker = tables.worker()
    if state is S.DRAINING:
        tables.reserve(worker, 1, keys(1))
    if state in (S.DRAINING, S.DRAINED):
        tables.drain()
    if state in (S.STOPPING, S.STOPPED):
        tables.drain(exits=True)
    if state is S.STOPPED:
        tables.core.ended()
    assert tables.core.state is state
    return tables


@pytest.mark.parametrize(
    ("state", "after"),
    [(S.STARTING, None), (S.READY, S.DRAINED), (S.DRAINING, S.DRAINING), (S.DRAINED, S.DRAINED), (S.STOPPING, None)],
)
def test_drain_in_every_state(state, after):
    tables = in_state(state)
    if after is None:
        with pytest.raises(Refusal) as refused:
            tables.drain()
        assert refused.value.code is ErrorCode.CONFLICT
        assert tables.core.state is state
    else:
        assert tables.drain() == (state is S.DRAINED)
        assert tables.core.state is after


@pytest.mark.parametrize(
    ("state", "after"),
    [(S.STARTING, None), (S.READY, S.READY), (S.DRAINING, S.READY), (S.DRAINED, S.READY), (S.STOPPING, None)],
)
def test_resume_in_every_state(state, after):
    tables = in_state(state)
    if after is None:
        with pytest.raises(Refusal) as refused:
            tables.resume()
        assert refused.value.code is ErrorCode.CONFLICT
        assert tables.core.state is state
    else:
        tables.resume()
        assert tables.core.state is after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (S.STARTING, S.STOPPING),
        (S.READY, S.STOPPING),  # nothing remains: drained and stopping in one step
        (S.DRAINING, S.DRAINING),
        (S.DRAINED, S.STOPPING),
        (S.STOPPING, S.STOPPING),
    ],
)
def test_a_signal_in_every_state(state, after):
    tables = in_state(state)
    tables.core.stop_signal(tables.now, tables.wall)
    tables.settle()
    assert tables.core.state is after


def test_the_pool_is_opened_only_while_starting():
    tables = in_state(S.READY)
    with pytest.raises(Refusal) as refused:
        tables.core.open_pool(None, found([]), [], tables.now)
    assert refused.value.code is ErrorCode.CONFLICT


GRANTING = {
    "register": lambda t, w, s: t.worker("new"),
    "reserve": lambda t, w, s: t.reserve(w, 9, keys(9)),
    "read": lambda t, w, s: t.read(w, 9, keys(9)),
}
ENDING = {
    "commit": lambda t, w, s: t.commit(w, 9),
    "abort": lambda t, w, s: t.abort(w, 9),
    "end_read": lambda t, w, s: t.end_read(w, 9),
    "release": lambda t, w, s: t.core.release(s, 1, 0, 1, t.now),
    "end_session": lambda t, w, s: t.core.end_session(s, 1, t.now),
    "unregister": lambda t, w, s: t.core.unregister(s, t.now),
}


def ready_with_parties() -> tuple[Tables, bytes, bytes]:
    tables = Tables()
    return tables, tables.worker(), tables.scheduler()


@pytest.mark.parametrize("name", [*GRANTING, *ENDING])
def test_while_starting_nothing_is_served(name):
    tables = Tables(state=S.STARTING)
    with pytest.raises(Refusal) as refused:
        {**GRANTING, **ENDING}[name](tables, b"w" * 16, b"s" * 16)
    assert refused.value.code is ErrorCode.STARTING
    assert refused.value.retry_after_seconds > 0


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("exits", [False, True])
def test_what_ends_something_is_served_in_every_state_but_starting(name, exits):
    tables, worker, scheduler = ready_with_parties()
    tables.drain(exits=exits)
    assert tables.core.state is (S.STOPPING if exits else S.DRAINED)
    ENDING[name](tables, worker, scheduler)


@pytest.mark.parametrize("name", GRANTING)
@pytest.mark.parametrize("exits", [False, True])
def test_drained_and_stopping_refuse_new_work(name, exits):
    tables, worker, scheduler = ready_with_parties()
    tables.drain(exits=exits)
    with pytest.raises(Refusal) as refused:
        GRANTING[name](tables, worker, scheduler)
    assert refused.value.code is (ErrorCode.STOPPING if exits else ErrorCode.DRAINING)


def test_refused_parties_are_told_unlike_times_to_come_back():
    tables, worker, _ = ready_with_parties()
    tables.drain()
    waits = set()
    for _ in range(8):
        with pytest.raises(Refusal) as refused:
            tables.reserve(worker, 1, keys(1))
        waits.add(refused.value.retry_after_seconds)
    assert len(waits) == 8
    assert all(1.0 <= wait <= 2.0 for wait in waits)
