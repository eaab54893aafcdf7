"""The adapter's view of its gateway, walked with a made-up clock."""

import itertools

import pytest

from adapter.liveness import (
    TABLE,
    EndDrain,
    Event,
    Liveness,
    Message,
    Need,
    Order,
    Reconnect,
    Say,
    Settle,
    WindDown,
)
from gateway.wire.codes import ErrorCode, Health, Lifecycle, State, SwitchMode, Trigger

BOOT, OTHER = b"A" * 16, b"B" * 16
HELLO, REGISTER, PING = (Say(message) for message in Message)


class Walk:
    """A liveness table with a clock of its own; ``orders`` keeps all it said."""

    def __init__(self, heartbeat: float = 1.0) -> None:
        self.now = 100.0
        self.table = Liveness(heartbeat, self.now)
        self.orders: list[Order] = []

    def tick(self, seconds: float = 0.0, *, may_register: bool = True) -> list[Order]:
        """Let time pass in steps of the link thread's; returns what was said in all of them."""
        said: list[Order] = []
        steps = max(1, round(seconds / 0.05))
        for _ in range(steps):
            self.now += seconds / steps
            said += self.table.tick(self.now, may_register=may_register)
        return said

    def welcome(self, boot: bytes = BOOT, state: Lifecycle = Lifecycle.READY) -> list[Order]:
        return self.table.welcome(boot, state, self.now)

    def pong(
        self,
        state: Lifecycle = Lifecycle.READY,
        health: Health = Health.HEALTHY,
        *,
        known: bool = True,
        drain_deadline: float | None = None,
    ) -> list[Order]:
        self.table.heard(self.now)
        return self.table.pong(state, health, known=known, drain_deadline=drain_deadline, now=self.now)

    def connect(self) -> "Walk":
        self.table.lock_seen(True, self.now)
        assert self.tick() == [HELLO]
        assert self.welcome() == []
        return self.register()

    def register(self) -> "Walk":
        assert self.tick() == [REGISTER]
        assert self.table.registered(self.now) == []
        assert self.tick() == [PING]
        assert self.pong() == [EndDrain()]
        assert self.table.state is State.HEALTHY
        return self


def test_the_way_to_healthy_and_heartbeats() -> None:
    walk = Walk()
    assert walk.tick(5) == []
    walk.connect()
    assert walk.tick(0.9) == []
    assert walk.tick(0.2) == [PING]
    assert walk.pong() == []
    assert walk.table.reconnects == 0
    assert walk.table.flaps == 0


def test_only_known_steps_are_in_the_table() -> None:
    """Every pair: what is there keeps the rules, what is not there changes nothing."""
    for state, event in itertools.product(State, Event):
        step = TABLE.get((state, event))
        if step is None:
            continue
        assert state is not State.CLOSED, "closed is final"
        if step.state is State.HEALTHY:
            assert event is Event.PONG_READY
            assert state in (State.CONNECTING, State.HEALTHY), "healthy is entered from a registration alone"
        if event is Event.LOCK_FREE:
            assert step.state is State.DEAD
            assert step.reconnect
        if step.state in (State.DEAD, State.UNRESPONSIVE, State.UNHEALTHY, State.INCOMPATIBLE, State.CLOSED):
            assert step.trigger is not None, "pending work is cleaned up"
        if event in (Event.OTHER_BOOT, Event.POOL_GONE):
            assert step.reconnect
            assert step.trigger is Trigger.RESTARTED
    assert {state for state, event in TABLE if event is Event.CLOSE} == set(State) - {State.CLOSED}
    assert {state for state, event in TABLE if event is Event.LOCK_FREE} == set(State) - {State.DEAD, State.CLOSED}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_each_pair_through_the_methods(state: State, event: Event) -> None:
    """Bring a walk into each state, let each thing happen: it follows the table, or nothing changes."""
    walk = _in_state(state)
    before = walk.table.state
    assert before is state
    _let_happen(walk, event)
    step = TABLE.get((state, event))
    expected = state if step is None or not _applies(state, event) else step.state
    assert walk.table.state is expected


def _in_state(state: State) -> Walk:
    walk = Walk()
    if state is State.CONNECTING:
        walk.table.lock_seen(True, walk.now)
        return walk
    walk.connect()
    match state:
        case State.DRAINING:
            walk.pong(Lifecycle.DRAINING, drain_deadline=walk.now + 30)
        case State.UNHEALTHY:
            walk.pong(health=Health.UNHEALTHY)
        case State.UNRESPONSIVE:
            walk.tick(3.5)
        case State.DEAD:
            walk.table.lock_seen(False, walk.now)
        case State.INCOMPATIBLE:
            walk.table.incompatible(walk.now)
        case State.CLOSED:
            walk.table.close(walk.now)
    return walk


def _applies(state: State, event: Event) -> bool:
    """Some things cannot be observed in some states: an answer to what was not asked is no answer."""
    needs = {
        State.CONNECTING: Need.HELLO,
        State.HEALTHY: Need.PING,
        State.DRAINING: Need.PING,
        State.UNHEALTHY: Need.PING,
        State.UNRESPONSIVE: Need.HELLO,
        State.DEAD: Need.NOTHING,
        State.INCOMPATIBLE: Need.HELLO,
        State.CLOSED: Need.NOTHING,
    }
    need = needs[state]
    match event:
        case Event.WELCOME:
            return need is Need.HELLO
        case Event.REGISTERED:
            return need is Need.REGISTER
        case Event.REFUSED | Event.NOT_ADMITTED:
            return need in (Need.REGISTER, Need.PING)
        case Event.UNKNOWN | Event.PONG_READY | Event.PONG_DRAINING | Event.PONG_UNHEALTHY | Event.SILENT:
            return need is Need.PING
        case Event.LOCK_HELD:
            return state is State.DEAD  # all others have seen it held
        case _:
            return True


def _let_happen(walk: Walk, event: Event) -> None:
    table, now = walk.table, walk.now
    match event:
        case Event.LOCK_HELD:
            table.lock_seen(True, now)
        case Event.LOCK_FREE:
            table.lock_seen(False, now)
        case Event.POOL_GONE:
            table.pool_gone(now)
        case Event.WELCOME:
            walk.welcome()
        case Event.OTHER_BOOT:
            table.wrong_boot(now)
        case Event.INCOMPATIBLE:
            table.incompatible(now)
        case Event.REGISTERED:
            table.registered(now)
        case Event.NOT_ADMITTED:
            table.not_registered(ErrorCode.DRAINING, 0.0, now)
        case Event.REFUSED:
            table.not_registered(ErrorCode.LIMIT, 0.0, now)
        case Event.UNKNOWN:
            walk.pong(known=False)
        case Event.PONG_READY:
            walk.pong()
        case Event.PONG_DRAINING:
            walk.pong(Lifecycle.DRAINING, drain_deadline=now + 30)
        case Event.PONG_UNHEALTHY:
            walk.pong(health=Health.UNHEALTHY)
        case Event.SILENT:
            walk.tick(3.5)
        case Event.CLOSE:
            table.close(now)


def test_silence_makes_it_unresponsive_and_a_reply_brings_it_back_through_registration() -> None:
    walk = Walk().connect()
    assert walk.tick(1.05) == [PING]
    assert walk.tick(1.3) == [PING]
    assert walk.tick(0.3) == [Settle(Trigger.UNRESPONSIVE), HELLO]
    assert walk.table.state is State.UNRESPONSIVE
    assert not walk.table.is_registered
    assert walk.tick(1.05) == [HELLO]
    walk.table.heard(walk.now)
    assert walk.tick() == [HELLO], "whoever speaks again is greeted at once"
    assert walk.welcome() == []
    walk.register()
    assert walk.table.reconnects == 1
    assert walk.table.flaps == 1


def test_time_in_which_the_thread_did_not_run_is_no_silence() -> None:
    walk = Walk().connect()
    walk.tick(1.05)
    walk.now += 60
    assert walk.table.tick(walk.now, may_register=True) == [PING]
    assert walk.table.state is State.HEALTHY


def test_without_a_ping_outstanding_there_is_no_silence() -> None:
    walk = Walk(heartbeat=10.0).connect()
    assert walk.tick(9.9) == []
    assert walk.table.state is State.HEALTHY


def test_death_is_settled_once_and_the_next_daemon_is_greeted_when_it_holds_its_lock() -> None:
    walk = Walk().connect()
    assert walk.table.lock_seen(False, walk.now) == [Settle(Trigger.DEAD), Reconnect()]
    assert walk.table.lock_seen(False, walk.now) == []
    assert walk.tick(30) == []
    assert walk.table.lock_seen(True, walk.now) == []
    assert walk.tick() == [HELLO]
    assert walk.welcome(OTHER) == []
    assert walk.table.boot == OTHER
    walk.register()


def test_a_lock_never_seen_held_proves_nothing() -> None:
    walk = Walk()
    assert walk.table.lock_seen(False, walk.now) == []
    assert walk.table.state is State.CONNECTING


def test_another_boot_is_adopted_from_a_welcome_on_a_new_socket_alone() -> None:
    walk = Walk().connect()
    assert walk.table.stranger() == [HELLO]
    assert walk.table.stranger() == [], "one HELLO at a time"
    assert walk.welcome(OTHER) == [Settle(Trigger.RESTARTED), Reconnect()]
    assert walk.table.boot == b""
    assert walk.tick() == [HELLO]
    assert walk.welcome(OTHER) == []
    walk.register()
    assert walk.table.boot == OTHER


def test_a_stranger_that_was_none_changes_nothing() -> None:
    walk = Walk().connect()
    assert walk.table.stranger() == [HELLO]
    assert walk.welcome(BOOT) == []
    assert walk.table.state is State.HEALTHY
    assert walk.table.stranger() == [HELLO]


def test_wrong_boot_and_unknown_party_settle_as_restarted() -> None:
    walk = Walk().connect()
    assert walk.table.wrong_boot(walk.now) == [Settle(Trigger.RESTARTED), Reconnect()]
    walk = Walk().connect()
    assert walk.table.unknown(walk.now) == [Settle(Trigger.RESTARTED)]
    assert not walk.table.is_registered
    assert walk.tick() == [REGISTER]


def test_registration_waits_for_units_of_an_older_boot() -> None:
    walk = Walk().connect()
    walk.table.lock_seen(False, walk.now)
    walk.table.lock_seen(True, walk.now)
    walk.tick()
    walk.welcome(OTHER)
    assert walk.tick(5, may_register=False) == []
    assert walk.tick(may_register=True) == [REGISTER]


def test_units_of_the_same_boot_do_not_hold_a_registration_back() -> None:
    walk = Walk().connect()
    walk.pong(Lifecycle.DRAINING, drain_deadline=walk.now + 30)
    walk.pong(Lifecycle.READY)
    assert walk.tick(may_register=False) == [REGISTER]
    assert walk.table.is_registered, "what is granted is still committed meanwhile"


def test_gateway_drain_winds_down_once_and_an_earlier_deadline_wins() -> None:
    walk = Walk().connect()
    deadline = walk.now + 30
    assert walk.pong(Lifecycle.DRAINING, drain_deadline=deadline) == [WindDown(Trigger.GATEWAY_DRAINING, deadline)]
    assert walk.pong(Lifecycle.DRAINING, drain_deadline=deadline) == []
    assert walk.pong(Lifecycle.DRAINING, drain_deadline=deadline - 20) == [
        WindDown(Trigger.GATEWAY_DRAINING, deadline - 20)
    ]
    assert walk.pong(Lifecycle.DRAINED) == [WindDown(Trigger.GATEWAY_DRAINING, walk.now)], "what was granted is cut"
    assert walk.pong(Lifecycle.DRAINED) == []
    assert walk.pong(Lifecycle.READY) == []
    walk.register()


def test_death_during_a_drain_is_settled() -> None:
    walk = Walk().connect()
    walk.pong(Lifecycle.DRAINING, drain_deadline=walk.now + 30)
    assert walk.table.lock_seen(False, walk.now) == [Settle(Trigger.DEAD), Reconnect()]


def test_silence_after_a_drain_was_called_off_is_settled_too() -> None:
    """Work that was granted before the drain may still be pending while the party registers again."""
    walk = Walk().connect()
    walk.pong(Lifecycle.DRAINING, drain_deadline=walk.now + 30)
    walk.pong(Lifecycle.READY)
    assert walk.tick() == [REGISTER]
    assert Settle(Trigger.UNRESPONSIVE) in walk.tick(3.0)


def test_unhealthy_settles_once_and_returns_through_registration() -> None:
    walk = Walk().connect()
    assert walk.pong(health=Health.UNHEALTHY) == [Settle(Trigger.GATEWAY_UNHEALTHY)]
    assert walk.pong(health=Health.UNHEALTHY) == []
    assert walk.table.state is State.UNHEALTHY
    assert walk.pong(health=Health.DEGRADED) == []
    walk.register()


def test_a_gateway_that_drains_admits_nobody_and_is_asked_again() -> None:
    walk = Walk()
    walk.table.lock_seen(True, walk.now)
    walk.tick()
    walk.welcome()
    walk.tick()
    assert walk.table.not_registered(ErrorCode.DRAINING, 0.5, walk.now) == []
    assert walk.table.state is State.DRAINING
    assert walk.tick(0.4) == []
    assert walk.tick(0.15) == [REGISTER]
    assert walk.table.not_registered(ErrorCode.LIMIT, 0.0, walk.now) == []
    assert walk.table.state is State.CONNECTING


def test_a_starting_gateway_is_greeted_until_it_has_a_pool() -> None:
    walk = Walk()
    walk.table.lock_seen(True, walk.now)
    assert walk.tick() == [HELLO]
    assert walk.welcome(state=Lifecycle.STARTING) == []
    assert walk.table.boot == b""
    assert walk.tick(0.2) == [HELLO]
    walk.welcome()
    walk.register()


def test_an_incompatible_gateway_is_asked_each_thirty_seconds() -> None:
    walk = Walk()
    walk.table.lock_seen(True, walk.now)
    walk.tick()
    assert walk.table.incompatible(walk.now) == []
    assert walk.table.state is State.INCOMPATIBLE
    assert walk.tick(29.0) == []
    assert walk.tick(1.5) == [HELLO]
    assert walk.table.incompatible(walk.now) == []
    assert walk.tick(29.0) == []
    walk.table.lock_seen(False, walk.now)
    walk.table.lock_seen(True, walk.now)
    assert walk.tick() == [HELLO], "another daemon may be another version"


def test_operator_drain_outranks_the_gateway_and_is_idempotent() -> None:
    walk = Walk().connect()
    assert walk.table.drain(walk.now + 30) == [WindDown(Trigger.OPERATOR, walk.now + 30)]
    assert walk.table.drain(walk.now + 60) == []
    assert walk.table.drain(walk.now) == [WindDown(Trigger.OPERATOR, walk.now)]
    assert walk.table.state is State.DRAINING
    assert walk.pong() == []
    assert walk.table.resume() == [EndDrain()]
    assert walk.table.resume() == []
    assert walk.table.state is State.HEALTHY


def test_resume_while_the_gateway_is_gone_ends_the_drain_when_it_is_back() -> None:
    walk = Walk().connect()
    walk.table.drain(walk.now + 30)
    walk.table.lock_seen(False, walk.now)
    assert walk.table.state is State.DRAINING
    assert walk.table.resume() == []
    assert walk.table.state is State.DEAD
    walk.table.lock_seen(True, walk.now)
    walk.tick()
    walk.welcome(OTHER)
    walk.register()


def test_close_is_final_and_keeps_the_registration_for_the_goodbye() -> None:
    walk = Walk().connect()
    assert walk.table.close(walk.now) == [Settle(Trigger.CLOSE)]
    assert walk.table.close(walk.now) == []
    assert walk.table.is_registered
    assert walk.tick(10) == []
    assert walk.table.drain(walk.now) == []
    assert walk.table.state is State.CLOSED


# -- switches ----------------------------------------------------------------------------------------------------------


def test_a_switch_winds_down_and_back() -> None:
    walk = Walk().connect()
    table = walk.table
    assert table.switched(SwitchMode.OFF, 30.0) == [WindDown(Trigger.SWITCH, 30.0)]
    assert table.switched(SwitchMode.OFF, 31.0) == []
    assert (table.state, table.switch) == (State.HEALTHY, SwitchMode.OFF)
    assert table.switched(SwitchMode.NO_STORE, 32.0) == [EndDrain()], "loads are welcome again"
    assert table.switched(SwitchMode.ON, 33.0) == []


def test_no_drain_and_no_gateway_ends_a_switch() -> None:
    walk = Walk().connect()
    table = walk.table
    table.switched(SwitchMode.OFF, 30.0)
    table.drain(20.0)
    assert table.resume() == [], "switched off still"
    table.lock_seen(False, walk.now)
    assert table.state is State.DEAD
    assert table.switched(SwitchMode.ON, 40.0) == [], "dead still"


def test_a_switch_that_ends_leaves_an_operator_s_drain() -> None:
    table = Walk().connect().table
    table.drain(20.0)
    table.switched(SwitchMode.OFF, 30.0)
    assert table.switched(SwitchMode.ON, 31.0) == []
    assert table.resume() == [EndDrain()]


def test_whoever_comes_back_switched_off_takes_no_work() -> None:
    walk = Walk()
    walk.table.switched(SwitchMode.OFF, 30.0)
    walk.table.lock_seen(True, walk.now)
    walk.tick()
    walk.welcome()
    walk.tick()
    walk.table.registered(walk.now)
    walk.tick()
    assert walk.pong() == []
    assert walk.table.state is State.HEALTHY
