from adapter import lookups
from adapter.lookups import Lookups, Pending

KEYS = tuple(bytes([i]) * 32 for i in range(8))


def begun(table: Lookups, request: str = "r", now: float = 0.0) -> int:
    lookup, _ = table.begin(request, KEYS, now + 0.2, now)
    return lookup.session


def test_pending_then_promised_while_the_lease_lives() -> None:
    table = Lookups()
    session = begun(table)
    assert table.check("r", 0.1) is Pending.PENDING
    assert table.answer("r", session, 5, 10.0) is not None
    assert table.check("r", 1.0) == 5
    assert table.check("r", 10.0) == 0
    table.renew([session], [session], 20.0)
    assert table.check("r", 10.0) == 5


def test_a_promise_that_the_gateway_does_not_know_any_more_is_void_at_once() -> None:
    table = Lookups()
    old, young, waiting = (begun(table, request) for request in ("old", "young", "waiting"))
    table.answer("old", old, 5, 10.0)
    table.answer("young", young, 4, 10.0)
    table.renew([old, waiting], [], 0.0)
    assert table.check("old", 1.0) == 0
    assert table.check("young", 1.0) == 4, "it was begun after that heartbeat"
    table.answer("waiting", waiting, 3, 10.0)
    assert table.check("waiting", 1.0) == 3, "its answer comes after that heartbeat's"


def test_an_unknown_request_is_a_miss() -> None:
    assert Lookups().check("nobody", 0.0) == 0


def test_a_late_answer_is_none() -> None:
    table = Lookups()
    session = begun(table)
    assert table.check("r", 0.2) == 0
    assert table.answer("r", session, 0, 0.0) is not None
    assert table.answer("r", session, 8, 99.0) is None
    assert table.check("r", 0.3) == 0


def test_each_lookup_takes_a_new_session_and_ends_the_old() -> None:
    table = Lookups()
    first = begun(table)
    lookup, ended = table.begin("r", KEYS[:2], 1.0, 0.5)
    assert ended == [first]
    assert lookup.session > first
    assert table.answer("r", first, 8, 99.0) is None
    assert table.num_unanswered == 1


def test_a_repeated_lookup_is_needless_until_its_lease_ends() -> None:
    table = Lookups()
    assert not table.is_needless("r", KEYS, 0.0)
    session = begun(table)
    assert table.is_needless("r", KEYS, 0.1)
    assert not table.is_needless("r", KEYS[:3], 0.1)
    table.answer("r", session, 8, 10.0)
    assert table.is_needless("r", KEYS, 9.0)
    assert not table.is_needless("r", KEYS, 10.0)


def test_release_of_a_range_keeps_the_rest() -> None:
    table = Lookups()
    session = begun(table)
    table.answer("r", session, 8, 10.0)
    assert table.release("r", 5, 8) == (session, 3, False)
    assert table.check("r", 1.0) == 5
    assert table.release("r", 5, 8) is None
    assert table.release("r", 0, 3) == (session, 3, False)
    assert table.check("r", 1.0) == 0, "without its beginning a promise is worth nothing"
    assert table.live_sessions(1.0) == (session,)
    assert table.release("r", 0, 8) == (session, 2, True)
    assert table.live_sessions(1.0) == ()


def test_only_live_sessions_are_renewed() -> None:
    table = Lookups()
    sessions = [begun(table, f"r{i}") for i in range(3)]
    table.answer("r0", sessions[0], 0, 0.0)
    table.answer("r1", sessions[1], 4, 10.0)
    assert table.live_sessions(1.0) == (sessions[1], sessions[2])
    table.void_all()
    assert table.live_sessions(1.0) == ()
    assert table.num_unanswered == 0


def test_end_forgets() -> None:
    table = Lookups()
    session = begun(table)
    assert table.end("r") == [session]
    assert table.end("r") == []
    assert table.num_unanswered == 0
    assert table.check("r", 0.0) == 0


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 3)
    table = Lookups()
    sessions = [begun(table, f"r{i}") for i in range(3)]
    _, ended = table.begin("r3", KEYS, 1.0, 0.0)
    assert ended == [sessions[0]]
    assert not table.knows("r0")
    assert len(table.end_all()) == 3
