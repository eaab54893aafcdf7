"""The adapter's view of its gateway, as a table: what was observed goes in, what must be done comes out.

Owns: the adapter's ``State``, the boot id it has adopted, what it must say next (HELLO, REGISTER, PING) and when, and
which observation begins a clean-up of pending work. Must not know: sockets, files, threads, the ledger. Pure; the time
is passed in, the caller serializes calls.

```
            lock held          welcome            registered          pong ready
 CONNECTING ─────────▶ (HELLO) ────────▶ (REGISTER) ────────▶ (PING) ──────────▶ HEALTHY
      ▲                                                                             │
      └──── restarted · unknown · back from draining, unhealthy, unresponsive, dead ┘
```

Three rules shape the table. Work is accepted in HEALTHY alone, and HEALTHY is entered from a registration alone. A
clean-up is begun only where work may be pending, that is once after each time the gateway was HEALTHY. A boot id is
adopted only from the answer to our own HELLO: whatever another boot says merely prompts one.

Silence is counted in time the caller itself ran: a tick that comes late adds little, so that a paused machine or a
starved thread does not make a live gateway look hung.
"""

import math
from dataclasses import dataclass
from enum import Enum, auto

from gateway.wire.codes import ErrorCode, Health, Lifecycle, State, SwitchMode, Trigger

#: Heartbeats without any reply, a PING outstanding, that make the gateway unresponsive.
SILENT_HEARTBEATS = 2.5
#: The most one tick adds to the silence: twice the interval at which the link looks at the daemon's lock.
MAX_TICK_SECONDS = 0.1
INCOMPATIBLE_RETRY_SECONDS = 30.0
STARTING_RETRY_SECONDS = 0.1


class Event(Enum):
    """What can be observed of the gateway."""

    LOCK_HELD = auto()  # its lock was free or unknown, and is held now
    LOCK_FREE = auto()  # its lock was seen held, and is free now, on one inode: proven dead
    POOL_GONE = auto()  # the pool's path is missing, unreadable or names another file
    WELCOME = auto()
    OTHER_BOOT = auto()  # another boot answered our HELLO, or said wrong_boot
    INCOMPATIBLE = auto()
    REGISTERED = auto()
    NOT_ADMITTED = auto()  # REGISTER was refused because the gateway drains
    REFUSED = auto()  # REGISTER was refused for another reason
    UNKNOWN = auto()  # the gateway does not know this party
    PONG_READY = auto()
    PONG_DRAINING = auto()
    PONG_UNHEALTHY = auto()
    SILENT = auto()
    CLOSE = auto()


class Need(Enum):
    """What must be said until it is answered."""

    NOTHING = auto()
    HELLO = auto()
    REGISTER = auto()
    PING = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the table.

    Attributes:
        state: the adapter's view from now on.
        need: what must be said from now on.
        trigger: clean up the work that may be pending.
        reconnect: close the socket and whatever it has queued.
    """

    state: State
    need: Need
    trigger: Trigger | None = None
    reconnect: bool = False


_LIVE = (State.CONNECTING, State.HEALTHY, State.DRAINING, State.UNHEALTHY)  # states in which heartbeats may run
_OPEN = (*_LIVE, State.UNRESPONSIVE, State.DEAD, State.INCOMPATIBLE)
_NOT_DEAD = (*_LIVE, State.UNRESPONSIVE, State.INCOMPATIBLE)


def _all(states: tuple[State, ...], event: Event, step: Step) -> dict[tuple[State, Event], Step]:
    return {(state, event): step for state in states}


_GREET = Step(State.CONNECTING, Need.HELLO)
_REGISTER = Step(State.CONNECTING, Need.REGISTER)
_REGISTER_ANEW = Step(State.CONNECTING, Need.REGISTER, Trigger.RESTARTED)
_FIRST_PING = Step(State.CONNECTING, Need.PING)
_WIND_DOWN = Step(State.DRAINING, Need.PING, Trigger.GATEWAY_DRAINING)

#: (state, event) → step. What is not here changes nothing.
TABLE: dict[tuple[State, Event], Step] = {
    **_all((State.CONNECTING, State.DEAD), Event.LOCK_HELD, _GREET),
    **_all(_NOT_DEAD, Event.LOCK_FREE, Step(State.DEAD, Need.NOTHING, Trigger.DEAD, reconnect=True)),
    **_all(_OPEN, Event.POOL_GONE, Step(State.CONNECTING, Need.NOTHING, Trigger.RESTARTED, reconnect=True)),
    **_all(_NOT_DEAD, Event.OTHER_BOOT, Step(State.CONNECTING, Need.HELLO, Trigger.RESTARTED, reconnect=True)),
    **_all(_NOT_DEAD, Event.INCOMPATIBLE, Step(State.INCOMPATIBLE, Need.HELLO, Trigger.RESTARTED)),
    **_all((State.CONNECTING, State.UNRESPONSIVE, State.INCOMPATIBLE), Event.WELCOME, _REGISTER),
    **_all((State.CONNECTING, State.DRAINING), Event.REGISTERED, _FIRST_PING),
    **_all((State.CONNECTING, State.DRAINING), Event.NOT_ADMITTED, Step(State.DRAINING, Need.REGISTER)),
    **_all((State.CONNECTING, State.DRAINING), Event.REFUSED, _REGISTER),
    **_all((State.HEALTHY, State.UNHEALTHY), Event.NOT_ADMITTED, _REGISTER_ANEW),
    **_all((State.HEALTHY, State.UNHEALTHY), Event.REFUSED, _REGISTER_ANEW),
    **_all(_LIVE, Event.UNKNOWN, _REGISTER_ANEW),
    **_all((State.CONNECTING, State.HEALTHY), Event.PONG_READY, Step(State.HEALTHY, Need.PING)),
    **_all((State.DRAINING, State.UNHEALTHY), Event.PONG_READY, _REGISTER),
    **_all((State.CONNECTING, State.HEALTHY, State.UNHEALTHY), Event.PONG_DRAINING, _WIND_DOWN),
    **_all((State.DRAINING,), Event.PONG_DRAINING, Step(State.DRAINING, Need.PING)),
    **_all(_LIVE, Event.PONG_UNHEALTHY, Step(State.UNHEALTHY, Need.PING, Trigger.GATEWAY_UNHEALTHY)),
    **_all(_LIVE, Event.SILENT, Step(State.UNRESPONSIVE, Need.HELLO, Trigger.UNRESPONSIVE)),
    **_all(_OPEN, Event.CLOSE, Step(State.CLOSED, Need.NOTHING, Trigger.CLOSE)),
}


class Message(Enum):
    """A message of the link's own."""

    HELLO = auto()
    REGISTER = auto()
    PING = auto()


@dataclass(frozen=True, slots=True)
class Say:
    """Send this message now."""

    message: Message


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the socket with all it has queued; the next message opens another."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Give all pending work up at once."""

    trigger: Trigger


@dataclass(frozen=True, slots=True)
class WindDown:
    """No new work; granted work runs on to the deadline (monotonic), then settles."""

    trigger: Trigger
    deadline: float


@dataclass(frozen=True, slots=True)
class EndDrain:
    """Work is accepted again."""


Order = Say | Reconnect | Settle | WindDown | EndDrain


class Liveness:
    """What one adapter makes of what it observes. Every method is one step and returns what must be done, in order."""

    def __init__(self, heartbeat_seconds: float, now: float) -> None:
        #: The adopted boot; empty until a HELLO is answered, and after the gateway died or was replaced.
        self.boot = b""
        #: The gateway knows this party, as far as we know: requests other than HELLO and REGISTER may be sent.
        self.is_registered = False
        #: Registrations after the first.
        self.reconnects = -1
        #: Times HEALTHY was left, but for ``close``.
        self.flaps = 0
        self._heartbeat = heartbeat_seconds
        self._view = State.CONNECTING
        self._need = Need.NOTHING
        self._due = math.inf  # when the needed message is to be said (again)
        self._lock_held = False  # as last seen on the present inode
        self._registered_boot = b""  # of the last registration: only its grants can be in use when it is ``boot``
        self._may_hold_work = False  # HEALTHY since the last clean-up
        self._hello_is_out = False  # one unasked HELLO at a time
        self._unanswered = False  # a REGISTER or PING
        self._silence = 0.0  # own running time since the last reply
        self._ticked_at = now
        #: What operators let this adapter do, whatever the gateway's state.
        self.switch = SwitchMode.ON
        self._operator_deadline = math.inf  # of the operator's drain; inf when there is none
        self._gateway_deadline = math.inf  # of the gateway's drain, as last passed on

    @property
    def state(self) -> State:
        """The adapter's view. An operator's drain of the adapter outranks what the gateway does, but for ``closed``."""
        if self._operator_deadline < math.inf and self._view is not State.CLOSED:
            return State.DRAINING
        return self._view

    @property
    def gateway_state(self) -> State:
        """The adapter's view, whatever an operator asked of the adapter."""
        return self._view

    # -- the file and its lock

    def lock_seen(self, held: bool, now: float) -> list[Order]:
        """The daemon's lock was looked at, on the present inode."""
        if held == self._lock_held:
            return []
        self._lock_held = held
        return self._step(Event.LOCK_HELD if held else Event.LOCK_FREE, now)

    def pool_gone(self, now: float) -> list[Order]:
        """The pool's path no longer names the file whose lock was looked at."""
        self._lock_held = False
        return self._step(Event.POOL_GONE, now)

    # -- answers

    def heard(self, now: float) -> None:
        """Any reply of the adopted boot came: it is not silent. One that was silent before is greeted at once."""
        self._silence = 0.0
        if self._view is State.UNRESPONSIVE:
            self._due = min(self._due, now)

    def stranger(self) -> list[Order]:
        """A reply of another boot came, and was dropped: ask who is there, once."""
        if self._need in (Need.HELLO, Need.NOTHING) or self._hello_is_out:
            return []
        self._hello_is_out = True
        return [Say(Message.HELLO)]

    def welcome(self, boot: bytes, state: Lifecycle, now: float) -> list[Order]:
        """Our HELLO was answered."""
        self._hello_is_out = False
        if self.boot and boot != self.boot:
            return self._step(Event.OTHER_BOOT, now)
        if self._need is not Need.HELLO:
            return []
        if state is Lifecycle.STARTING:
            self._due = now + min(STARTING_RETRY_SECONDS, self._heartbeat)
            return []
        self.boot = boot
        return self._step(Event.WELCOME, now)

    def hello_failed(self) -> None:
        """Our HELLO was lost or refused; a needed one is said again in time."""
        self._hello_is_out = False

    def incompatible(self, now: float) -> list[Order]:
        """The gateway's protocol or pool format is not ours."""
        self._hello_is_out = False
        return self._step(Event.INCOMPATIBLE, now)

    def registered(self, now: float) -> list[Order]:
        """REGISTER was accepted; the first heartbeat follows at once."""
        if self._need is not Need.REGISTER:  # a worker told its geometry while healthy: nothing else is new
            return []
        self.reconnects += 1
        self.is_registered = True
        self._registered_boot = self.boot
        return self._step(Event.REGISTERED, now)

    def not_registered(self, code: ErrorCode, retry_after_seconds: float, now: float) -> list[Order]:
        """REGISTER was refused."""
        if self._need not in (Need.REGISTER, Need.PING):
            return []
        drains = code in (ErrorCode.DRAINING, ErrorCode.STOPPING)
        orders = self._step(Event.NOT_ADMITTED if drains else Event.REFUSED, now)
        self._due = now + (retry_after_seconds or self._heartbeat)
        return orders

    def wrong_boot(self, now: float) -> list[Order]:
        """The daemon that answered is not the one we meant."""
        return self._step(Event.OTHER_BOOT, now)

    def unknown(self, now: float) -> list[Order]:
        """The gateway does not know this party, though it registered."""
        return self._step(Event.UNKNOWN, now) if self._need is Need.PING else []

    def pong(
        self, state: Lifecycle, health: Health, *, known: bool, drain_deadline: float | None, now: float
    ) -> list[Order]:
        """A heartbeat was answered. ``drain_deadline``: of the drain under way, if one is."""
        if self._need is not Need.PING:
            return []
        self._unanswered = False
        if not known or state is Lifecycle.STARTING:
            return self._step(Event.UNKNOWN, now)
        if health is Health.UNHEALTHY:
            return self._step(Event.PONG_UNHEALTHY, now)
        if state is Lifecycle.READY:
            return self._step(Event.PONG_READY, now)
        # A gateway that is past draining has cut what it had granted.
        deadline = now if state is not Lifecycle.DRAINING or drain_deadline is None else drain_deadline
        was_draining = self._view is State.DRAINING
        orders = self._step(Event.PONG_DRAINING, now)
        if was_draining and self._may_hold_work and deadline < self._gateway_deadline:
            orders.append(Settle(Trigger.GATEWAY_DRAINING))
        self._gateway_deadline = min(deadline, self._gateway_deadline) if was_draining else deadline
        return [WindDown(order.trigger, deadline) if isinstance(order, Settle) else order for order in orders]

    # -- the engine's side

    def drain(self, deadline: float) -> list[Order]:
        """An operator drains the adapter. Again while it drains: the earlier deadline wins."""
        if self._view is State.CLOSED or deadline >= self._operator_deadline:
            return []
        self._operator_deadline = deadline
        return [WindDown(Trigger.OPERATOR, deadline)]

    def resume(self) -> list[Order]:
        """The operator's drain is over, if there was one."""
        was_draining = self._operator_deadline < math.inf
        self._operator_deadline = math.inf
        return self._end_drain() if was_draining else []

    def switched(self, mode: SwitchMode, deadline: float) -> list[Order]:
        """An operator's switch was looked at. Off: what is granted runs on to the deadline, as in a drain."""
        before, self.switch = self.switch, mode
        if mode is before or self._view is State.CLOSED:
            return []
        if mode is SwitchMode.OFF:
            return [WindDown(Trigger.SWITCH, deadline)]
        return self._end_drain() if before is SwitchMode.OFF else []

    def _end_drain(self) -> list[Order]:
        """Work is accepted again, unless the gateway, an operator's drain or a switch forbids it."""
        may_work = self._view is State.HEALTHY and self._operator_deadline == math.inf
        return [EndDrain()] if may_work and self.switch is not SwitchMode.OFF else []

    def close(self, now: float) -> list[Order]:
        """The adapter closes; it stays registered until UNREGISTER is sent."""
        return self._step(Event.CLOSE, now)

    # -- time

    def tick(self, now: float, *, may_register: bool) -> list[Order]:
        """Say what is due.

        Args:
            now: monotonic seconds.
            may_register: no granted unit runs.
        """
        self._silence += min(now - self._ticked_at, MAX_TICK_SECONDS)
        self._ticked_at = now
        orders: list[Order] = []
        if self.is_registered and self._unanswered and self._silence >= SILENT_HEARTBEATS * self._heartbeat:
            orders = self._step(Event.SILENT, now)
        if now < self._due:
            return orders
        if self._need is Need.REGISTER and not may_register and self._registered_boot != self.boot:
            return orders
        retry_seconds = INCOMPATIBLE_RETRY_SECONDS if self._view is State.INCOMPATIBLE else self._heartbeat
        self._due = now + retry_seconds
        self._unanswered = self._need is not Need.HELLO
        return [*orders, Say(Message[self._need.name])]

    def next_due(self) -> float:
        """Monotonic time of the next message; inf when none is needed."""
        return self._due

    def ping_soon(self, now: float) -> None:
        """Something may have been lost: let a heartbeat heal it now."""
        if self._need is Need.PING:
            self._due = min(self._due, now)

    # -- the table

    def _step(self, event: Event, now: float) -> list[Order]:
        step = TABLE.get((self._view, event))
        if step is None:
            return []
        orders: list[Order] = []
        if step.trigger is not None and self._may_hold_work:
            self._may_hold_work = step.trigger is Trigger.GATEWAY_DRAINING  # granted work runs on
            orders.append(Settle(step.trigger))
        if step.reconnect:
            self._hello_is_out = False
            self.boot = b""
            orders.append(Reconnect())
        if step.need is Need.HELLO or step.reconnect or event in (Event.UNKNOWN, Event.REFUSED, Event.NOT_ADMITTED):
            self.is_registered = False
        if step.need is not self._need or step.reconnect:
            self._due = math.inf if step.need is Need.NOTHING else now
            self._silence = 0.0
            self._unanswered = False
        if step.state is State.INCOMPATIBLE:
            self._due = now + INCOMPATIBLE_RETRY_SECONDS
        if self._view is State.HEALTHY and step.state not in (State.HEALTHY, State.CLOSED):
            self.flaps += 1
        if self._view is not State.HEALTHY and step.state is State.HEALTHY:
            self._may_hold_work = True
        is_back = self._view is not State.HEALTHY
        self._view, self._need = step.state, step.need
        return [*orders, *self._end_drain()] if is_back else orders
