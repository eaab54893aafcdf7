"""The judgement alone: what is wrong, how much it matters, what to do next, and which engine is worse."""

import msgspec
import pytest

from gateway.admin.overview import MAX_TRANSFERS, overview_of
from gateway.admin.verdict import Severity
from gateway.wire.codes import Health, Lifecycle, OutcomeKind, State, SwitchMode, SwitchScope
from gateway.wire.messages import EngineInfo, Sample, SnapshotReply, SwitchInfo
from tests.support.core_double import check, drain, engine, snapshot, transfer

NOW = 1_800_000_000.0


def engines_of(*names_and_changes: tuple[str, dict]) -> tuple[EngineInfo, ...]:
    return tuple(engine(name, **{"last_heartbeat_at": NOW - 1, **changes}) for name, changes in names_and_changes)


def party_in(state: State) -> dict:
    (party,) = engine().parties
    return {"parties": (msgspec.structs.replace(party, state=state),)}


def oldest(seconds: float) -> dict:
    return {"gauges": (Sample("oldest_pending_timestamp_seconds", (), NOW - seconds),)}


def judged(**changes: object):
    reply: SnapshotReply = snapshot(**{"engines": engines_of(("e1", {})), **changes})
    return overview_of(reply, NOW)


def test_all_is_well() -> None:
    verdict = judged().verdict
    assert (verdict.severity, verdict.findings) == (Severity.GOOD, [])
    assert verdict.line == "All is well: serving 1 engine, 3 operations pending."


@pytest.mark.parametrize("name", ["loop", "reaper", "pool", "admin", "quarantine", "old_pools", "one that is new"])
@pytest.mark.parametrize("critical", [True, False])
def test_each_failing_check_has_one_next_step(name: str, critical: bool) -> None:
    overview = judged(checks=(check(name, ok=False, critical=critical, reason="why"),), ready=not critical)
    (finding,) = overview.verdict.findings
    assert finding.severity is (Severity.CRITICAL if critical else Severity.WARNING)
    assert finding.detail == "why"
    assert finding.next_step.startswith("kvgate ")
    assert overview.verdict.line.startswith("Not serving: " if critical else "Look at it: ")


@pytest.mark.parametrize("state", list(Lifecycle))
def test_each_state_but_ready_says_what_to_do(state: Lifecycle) -> None:
    for known in (None, drain(state=state, deadline_at=NOW + 7, reason="rollout")):
        findings = judged(state=state, ready=state is Lifecycle.READY, progress=0.4, drain=known).verdict.findings
        if state is Lifecycle.READY:
            assert findings == []
            continue
        (finding,) = findings
        assert (finding.name, finding.severity) == ("state", Severity.NOTICE)
        assert str(state) in finding.detail
        assert finding.next_step


def test_a_drain_is_told_with_who_why_and_what_is_left() -> None:
    line = judged(state=Lifecycle.DRAINING, ready=False, drain=drain(reason="rollout", requested_by="ada")).verdict.line
    assert line == "Not serving: draining, asked for by ada: rollout; 2 operations and 1 lease left."


def test_what_was_asked_for_explains_more_than_what_wants_a_look_and_less_than_what_is_broken() -> None:
    look, broken = check("quarantine", ok=False, critical=False), check("pool", ok=False)
    drained = {"state": Lifecycle.DRAINED, "ready": False, "drain": drain(state=Lifecycle.DRAINED)}
    names = [finding.name for finding in judged(checks=(look, broken), **drained).verdict.findings]
    assert names == ["pool", "state", "quarantine"]


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({}, Severity.GOOD, ""),
        (oldest(39), Severity.GOOD, ""),
        (oldest(41), Severity.CRITICAL, "pending for 41 s"),
        ({"last_heartbeat_at": NOW - 4}, Severity.GOOD, ""),
        ({"last_heartbeat_at": NOW - 6}, Severity.WARNING, "silent for 6 s"),
        ({"last_heartbeat_at": NOW - 6, "parties": ()}, Severity.GOOD, ""),
        (party_in(State.INCOMPATIBLE), Severity.WARNING, "sees the gateway as incompatible"),
        (party_in(State.UNRESPONSIVE), Severity.WARNING, "sees the gateway as unresponsive"),
        (party_in(State.DRAINING), Severity.GOOD, ""),
        ({"fenced": True}, Severity.NOTICE, "removed"),
        ({"state": Lifecycle.DRAINED}, Severity.NOTICE, "drained alone"),
    ],
)
def test_an_engine_s_trouble(changes: dict, severity: Severity, words: str) -> None:
    overview = judged(engines=engines_of(("e1", changes)))
    (row,) = overview.engines
    assert row.severity is severity
    assert words in row.trouble
    assert bool(row.trouble) is bool(words)
    is_told = severity in (Severity.WARNING, Severity.CRITICAL)
    assert [finding.next_step for finding in overview.verdict.findings] == ["kvgate engines e1"] * is_told


def test_a_switch_is_told_with_how_to_take_it_back() -> None:
    switches = (
        SwitchInfo(scope=SwitchScope.NODE, name="all", mode=SwitchMode.NO_STORE, since_at=NOW - 7200),
        SwitchInfo(scope=SwitchScope.MODEL, name="org/m", mode=SwitchMode.OFF, since_at=0.0),
        SwitchInfo(scope=SwitchScope.ENGINE, name="e1", mode=SwitchMode.ON, since_at=NOW),
    )
    verdict = judged(switches=switches).verdict
    assert [(finding.name, finding.next_step) for finding in verdict.findings] == [
        ("this node", "kvgate on --all"),
        ("model org/m", "kvgate on --model org/m"),
    ]
    assert verdict.severity is Severity.NOTICE
    assert verdict.line.startswith("As asked: this node: its switch has been at no_store for 2.0 h, and 1 more.")


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "less than a minute"), (60, "1 min"), (3599, "59 min"), (3600, "1.0 h")]
)
def test_a_switch_is_told_with_its_age_in_the_unit_that_fits(seconds: float, words: str) -> None:
    switches = (SwitchInfo(scope=SwitchScope.NODE, name="all", mode=SwitchMode.OFF, since_at=NOW - seconds),)
    assert judged(switches=switches).verdict.findings[0].detail == f"its switch has been at off for {words}"


def test_silence_is_measured_by_the_gateway_s_own_heartbeat() -> None:
    slow = judged(engines=engines_of(("e1", {"last_heartbeat_at": NOW - 60})), silence_seconds=90.0)
    assert slow.verdict.findings == []


def test_worst_engines_come_first_and_those_that_left_last() -> None:
    none = {"pending_stores": 0, "pending_retrieves": 0, "retained_events": 0}
    overview = judged(
        engines=engines_of(
            ("a-left", {"parties": (), **none}),
            ("b-idle", none),
            ("c-busy", {"pending_stores": 90}),
            ("d-alone", {"state": Lifecycle.DRAINING}),
            ("e-silent", {"last_heartbeat_at": NOW - 30}),
            ("f-stuck", oldest(100)),
        )
    )
    assert [row.name for row in overview.engines] == ["f-stuck", "e-silent", "d-alone", "c-busy", "b-idle", "a-left"]
    assert overview.verdict.severity is Severity.CRITICAL


def test_operations_have_a_bound_of_each_kind() -> None:
    pending = tuple(transfer(number, age_seconds=float(number)) for number in range(250))
    settled = tuple(
        transfer(1000 + number, outcome=OutcomeKind.STORED, settled_at=NOW - number) for number in range(250)
    )
    told = [one.number for one in judged(transfers=(*pending, *settled)).transfers]
    assert told[:MAX_TRANSFERS] == list(range(249, 149, -1)), "those pending longest"
    assert told[MAX_TRANSFERS:] == list(range(1000, 1100)), "those settled last"


def test_totals_are_of_all_engines_and_models() -> None:
    told = (Sample("prompt_tokens", (), 10.0), Sample("loaded_tokens", (), 4.0))
    overview = judged(
        health=Health.HEALTHY,
        engines=engines_of(("e1", {"counters": told}), ("e2", {"counters": told})),
        counters=(
            Sample("lookup_tokens", ("m",), 7.0),
            Sample("lookup_tokens", ("n",), 1.0),
            Sample("hit_tokens", ("m",), 5.0),
            Sample("transfer_bytes", ("store",), 3.0),
            Sample("transfer_bytes", ("retrieve",), 2.0),
        ),
    )
    assert overview.totals.model_dump() == {
        "prompt_tokens": 20, "loaded_tokens": 8, "lookup_tokens": 8, "hit_tokens": 5,
        "stored_bytes": 3, "retrieved_bytes": 2, "evictions": 0,
    }  # fmt: skip
    assert overview.pending == 6
