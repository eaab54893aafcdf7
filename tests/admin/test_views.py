"""A snapshot becomes documents."""

import pytest
from pydantic import ValidationError

from gateway.admin import views
from gateway.wire.codes import DrainOutcome, Health, Lifecycle, OutcomeKind, Reason
from gateway.wire.messages import NamespaceInfo
from tests.support import core_double
from tests.support.core_double import check, snapshot, transfer


def test_the_state_is_the_snapshot_s() -> None:
    state = views.state_of(snapshot(drain=core_double.drain()))
    assert (state.state, state.health, state.ready) == (Lifecycle.READY, Health.HEALTHY, True)
    assert state.boot_id == core_double.BOOT.hex()
    assert [c.name for c in state.checks] == ["loop", "reaper", "pool", "admin"]
    assert state.drain is not None
    assert state.drain.remaining == views.RemainingWork(operations=2, leases=1, dirty=0)
    assert state.engines == [
        views.EngineSummary(
            name="e1", model="m", state=Lifecycle.READY, fenced=False, parties=1,
            pending_stores=2, pending_retrieves=1, retained_events=3,
        )
    ]  # fmt: skip


def test_what_has_not_happened_is_null() -> None:
    running = views.drain_of(core_double.drain())
    assert running is not None
    assert (running.finished_at, running.outcome) == (None, None)
    assert views.drain_of(None) is None
    over = views.drain_of(core_double.drain(finished_at=7.0, outcome=DrainOutcome.FORCED))
    assert over is not None
    assert (over.finished_at, over.outcome) == (7.0, DrainOutcome.FORCED)
    assert views.cache_of(snapshot()).namespaces[0].last_hit_at is None


def test_engines_are_sorted_and_found_by_name() -> None:
    both = snapshot(engines=(core_double.engine("z"), core_double.engine("a")))
    assert [engine.name for engine in views.engines_of(both).engines] == ["a", "z"]
    assert views.find_engine(both, "z").parties[0].pid == 1
    with pytest.raises(views.NoSuchEngineError, match="there is no engine 'b'; known are: a, z"):
        views.find_engine(both, "b")


def test_an_engine_that_is_gone_is_told_with_when_it_was_heard_of_and_with_what_is_here() -> None:
    gone = core_double.engine("gone", parties=(), last_heartbeat_at=86400.0)
    never = core_double.engine("never", parties=(), last_heartbeat_at=0.0)
    found = snapshot(engines=(gone, core_double.engine("a"), never))
    with pytest.raises(views.NoSuchEngineError, match=r"'gone' is gone, last heard of at 1970-01-02 .* here are: a$"):
        views.find_engine_here(found, "gone")
    with pytest.raises(views.NoSuchEngineError, match=r"'never' is gone: nothing of it"):
        views.find_engine_here(found, "never")
    with pytest.raises(views.NoSuchEngineError, match=r"known are: a, gone \(gone\), never \(gone\)"):
        views.find_engine(found, "b")
    drained = core_double.engine("gone", parties=(), state=Lifecycle.DRAINED)
    assert views.find_engine_here(snapshot(engines=(drained,)), "gone").name == "gone", "it can be resumed"


def test_a_model_is_the_sum_of_its_namespaces() -> None:
    cache = views.cache_of(
        snapshot(
            namespaces=(
                NamespaceInfo(namespace="01" * 16, model="b", chunks=1, bytes=10, last_hit_at=5.0),
                NamespaceInfo(namespace="02" * 16, model="a", chunks=2, bytes=20, last_hit_at=0.0),
                NamespaceInfo(namespace="03" * 16, model="b", chunks=3, bytes=30, last_hit_at=9.0),
            )
        )
    )
    assert cache.models == [
        views.ModelUsage(model="a", chunks=2, bytes=20, last_hit_at=None),
        views.ModelUsage(model="b", chunks=4, bytes=40, last_hit_at=9.0),
    ]
    assert len(cache.namespaces) == 3


STORY = snapshot(
    transfers=(
        transfer(1, "r1", outcome=OutcomeKind.STORED, settled_at=10.0),
        transfer(2, "r1", age_seconds=1.0),
        transfer(3, "r2", age_seconds=9.0),
        transfer(4, "r1", outcome=OutcomeKind.FAILED, reason=Reason.NO_REPLY, settled_at=20.0),
    )
)


def test_transfers_are_the_oldest_pending_then_the_latest_settled() -> None:
    found = views.transfers_of(STORY).transfers
    assert [t.number for t in found] == [3, 2, 4, 1]
    assert (found[2].outcome, found[2].reason) == (OutcomeKind.FAILED, Reason.NO_REPLY)
    assert found[0].settled_at is None


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({"request": "r1"}, [2, 4, 1]),
        ({"state": views.TransferState.PENDING}, [3, 2]),
        ({"state": views.TransferState.SETTLED, "request": "r1"}, [4, 1]),
        ({"engine": "e1"}, [3, 2, 4, 1]),
        ({"engine": "other"}, []),
        ({"request": "r9"}, []),
    ],
)
def test_transfers_fit_every_filter(filters: dict, numbers: list[int]) -> None:
    assert [t.number for t in views.transfers_of(STORY, **filters).transfers] == numbers


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"health": Health.DEGRADED, "checks": (check("admin", ok=False, critical=False),)}, []),
        ({"state": Lifecycle.DRAINING, "ready": False}, ["state"]),
        ({"state": Lifecycle.STARTING, "ready": False, "checks": (check("pool", ok=False),)}, ["state", "pool"]),
        ({"health": Health.UNHEALTHY, "ready": False, "checks": (check("pool", ok=False),)}, ["pool"]),
        ({"health": Health.UNHEALTHY, "ready": False}, ["health"]),
    ],
)
def test_what_keeps_the_gateway_from_serving_is_named(changes: dict, names: list[str]) -> None:
    assert [name for name, _ in views.failing_of(snapshot(**changes))] == names


@pytest.mark.parametrize("body", [{}, {"model": "a", "all": True}, {"namespace": "xyz"}, {"model": "m", "extra": 1}])
def test_a_clear_names_exactly_one_thing(body: dict) -> None:
    with pytest.raises(ValidationError):
        views.ClearBody.model_validate(body)
