"""Admission: which request is served in which state, and which values make sense.

Owns: the gates in front of every step, the state a party is told, retry times. Must not know: what a step does. Runs on
the loop's thread.

Everything that ends something is served in every state but starting; what begins something needs the gateway and its
own engine to be ready. Every gate raises ``Refusal`` before anything has changed.
"""

import random
from collections.abc import Callable, Sequence

from gateway.core.drain import Drains
from gateway.core.leases import Leases
from gateway.core.parties import NAMESPACE_BYTES, Parties, Party
from gateway.core.reservations import Reservations
from gateway.core.types import CoreConfig, Refusal
from gateway.wire.codes import ErrorCode, Lifecycle, SwitchMode

SwitchOf = Callable[[str, str], SwitchMode]

KEY_BYTES = 32
#: Chunks of one prompt: a slot's header has 32 bits for the place of its chunk.
MAX_DEPTH = 2**32 - 1
WINDING_DOWN = (Lifecycle.DRAINING, Lifecycle.DRAINED)
STOPPED = (Lifecycle.STOPPING, Lifecycle.STOPPED)


class Admission:
    """The gates."""

    def __init__(self, config: CoreConfig, drains: Drains, parties: Parties, jitter: random.Random) -> None:
        #: What a model and an engine's name come to, by the operators' switches.
        self.switch_of: SwitchOf = lambda _model, _engine: SwitchMode.ON
        self._config = config
        self._drains = drains
        self._parties = parties
        self._jitter = jitter

    # -- states

    def engine_state(self, engine: str) -> Lifecycle:
        """Ready, draining or drained of its own; a fenced engine is drained."""
        if self._parties.is_fenced(engine):
            return Lifecycle.DRAINED
        drain = self._drains.engines.get(engine)
        return drain.state if drain is not None else Lifecycle.READY

    def party_state(self, party: Party) -> Lifecycle:
        """The gateway's state, unless it is ready and the party's engine is drained alone."""
        state = self._drains.state
        return self.engine_state(party.spec.engine) if state is Lifecycle.READY else state

    def switch(self, party: Party) -> SwitchMode:
        """What operators let the party do, whatever the state."""
        return self.switch_of(party.spec.model, party.spec.engine)

    # -- gates by state

    def ending(self) -> None:
        """For what ends something.

        Raises:
            Refusal: STARTING.
        """
        self._refuse_in(Lifecycle.STARTING)

    def serving(self) -> None:
        """For what needs a pool that stays.

        Raises:
            Refusal: STARTING or STOPPING.
        """
        self._refuse_in(Lifecycle.STARTING, *STOPPED)

    def newcomer(self) -> None:
        """For a party that is not known yet.

        Raises:
            Refusal: STARTING, STOPPING or DRAINING.
        """
        self._refuse_in(Lifecycle.STARTING, *WINDING_DOWN, *STOPPED)

    def _refuse_in(self, *states: Lifecycle) -> None:
        state = self._drains.state
        if state not in states:
            return
        if state in STOPPED:
            raise Refusal(ErrorCode.STOPPING, f"the gateway is {state}", self.retry_after())
        code = ErrorCode.STARTING if state is Lifecycle.STARTING else ErrorCode.DRAINING
        raise Refusal(code, f"the gateway is {state}: ask again later", self.retry_after())

    def draining(self, party: Party) -> Refusal:
        """The refusal of new work while the gateway or the party's engine is drained."""
        whose = "the gateway" if self._drains.state is not Lifecycle.READY else f"engine {party.spec.engine}"
        return Refusal(
            ErrorCode.DRAINING, f"{whose} is {self.party_state(party)}: no new work is taken", self.retry_after()
        )

    def switched_off(self, party: Party, what: str) -> Refusal:
        """The refusal of what a switch forbids."""
        mode = self.switch(party)
        return Refusal(
            ErrorCode.OFF, f"a switch says {mode} for engine {party.spec.engine}: {what}", self.retry_after()
        )

    def retry_after(self) -> float:
        """Between one and two heartbeats, so that refused parties do not come back all at once."""
        return self._config.heartbeat_seconds * (1.0 + self._jitter.random())

    # -- bounds and names

    def operation(self, party: bytes, operation: int, reservations: Reservations, leases: Leases) -> None:
        """An operation that holds nothing yet must fit the party's bound.

        Raises:
            Refusal: LIMIT.
        """
        storing, reading = reservations.operations_of(party), leases.reads_of(party)
        limit = self._config.max_operations_per_party
        if len(storing) + len(reading) >= limit and operation not in storing and operation not in reading:
            raise Refusal(ErrorCode.LIMIT, f"{limit} operations hold slots, no more may at once", self.retry_after())

    def session(self, party: bytes, session: int, leases: Leases) -> None:
        """A session that is not live yet must fit the party's bound.

        Raises:
            Refusal: LIMIT.
        """
        live, limit = leases.sessions_of(party), self._config.max_sessions_per_party
        if len(live) >= limit and session not in live:
            raise Refusal(ErrorCode.LIMIT, f"{len(live)} sessions live, at most {limit} may", self.retry_after())

    def engine(self, engine: str) -> None:
        """An operator names an engine.

        Raises:
            Refusal: NOT_FOUND; nobody has that name.
        """
        if engine not in self._parties.engines() and engine not in self._drains.engines:
            raise Refusal(ErrorCode.NOT_FOUND, f"no engine named {engine!r} is registered")


def check_numbers(**numbers: int) -> None:
    """Check numbers that count from 0.

    Raises:
        Refusal: INVALID.
    """
    for name, number in numbers.items():
        if number < 0:
            raise Refusal(ErrorCode.INVALID, f"{name} is {number}, expected at least 0")


def check_keys(keys: Sequence[bytes]) -> None:
    """Check the length of chunk keys.

    Raises:
        Refusal: INVALID.
    """
    for key in keys:
        if len(key) != KEY_BYTES:
            raise Refusal(ErrorCode.INVALID, f"a key has {len(key)} bytes, expected {KEY_BYTES}")


def check_reserve(keys: Sequence[bytes], depth: int, parent: bytes) -> None:
    """Check what a RESERVE asks for.

    Raises:
        Refusal: INVALID.
    """
    check_numbers(depth=depth)
    if depth + len(keys) > MAX_DEPTH:
        raise Refusal(ErrorCode.INVALID, f"depth is {depth}, expected at most {MAX_DEPTH} with its keys")
    check_keys(keys)
    num_distinct = len(set(keys))
    if num_distinct != len(keys):
        raise Refusal(ErrorCode.INVALID, f"{num_distinct} of {len(keys)} keys differ, expected each key once")
    if len(parent) not in (0, KEY_BYTES):
        raise Refusal(ErrorCode.INVALID, f"parent has {len(parent)} bytes, expected none or {KEY_BYTES}")


def check_clear(model: str, namespace: bytes, everything: bool) -> None:
    """Check what a CLEAR names.

    Raises:
        Refusal: INVALID.
    """
    if (bool(model), bool(namespace), everything).count(True) != 1:
        raise Refusal(ErrorCode.INVALID, "expected exactly one of model, namespace and all")
    if len(namespace) not in (0, NAMESPACE_BYTES):
        raise Refusal(ErrorCode.INVALID, f"namespace has {len(namespace)} bytes, expected {NAMESPACE_BYTES}")
