"""The gateway's lifecycle: one pure table of (state, event) to (state, action).

Owns: which steps there are. Must not know: why an event happens, how an action is done, the time. Pure; runs on the
loop's thread.
"""

from enum import StrEnum

from gateway.core.types import Refusal
from gateway.wire.codes import ErrorCode, Lifecycle


class Event(StrEnum):
    """What can happen to the gateway."""

    INIT_DONE = "init_done"  # the pool's memory is reserved
    DRAIN = "drain"  # an operator asks for it
    RESUME = "resume"  # an operator asks for it
    SIGNAL = "signal"  # SIGTERM or SIGINT
    EMPTIED = "emptied"  # nothing that a drain waits for remains
    DEADLINE = "deadline"  # the drain's deadline has come and something remains
    FORCE = "force"  # an operator or a second signal cuts what remains
    EXIT = "exit"  # a drain that was to end the process is over
    ENDED = "ended"  # the shell has closed everything


class Action(StrEnum):
    """What a step asks for."""

    NOTHING = "nothing"
    BEGIN = "begin"  # a new drain
    JOIN = "join"  # the earlier deadline wins, flags are OR-ed
    COMPLETE = "complete"  # the drain ends; nothing was cut
    CUT_LATE = "cut_late"  # the drain ends at its deadline; what remains is cut
    CUT_NOW = "cut_now"  # the drain ends by force; what remains is cut
    CANCEL = "cancel"  # the drain ends because new work is taken again


class IllegalStep(Refusal):
    """The table has no such step; nothing has changed."""

    def __init__(self, state: Lifecycle, event: Event) -> None:
        super().__init__(ErrorCode.CONFLICT, f"the gateway is {state}: there is no {event} from here")
        self.state = state
        self.event = event


TABLE: dict[tuple[Lifecycle, Event], tuple[Lifecycle, Action]] = {
    (Lifecycle.STARTING, Event.INIT_DONE): (Lifecycle.READY, Action.NOTHING),
    (Lifecycle.STARTING, Event.SIGNAL): (Lifecycle.STOPPING, Action.NOTHING),
    (Lifecycle.READY, Event.DRAIN): (Lifecycle.DRAINING, Action.BEGIN),
    (Lifecycle.READY, Event.SIGNAL): (Lifecycle.DRAINING, Action.BEGIN),
    (Lifecycle.READY, Event.RESUME): (Lifecycle.READY, Action.NOTHING),
    (Lifecycle.DRAINING, Event.DRAIN): (Lifecycle.DRAINING, Action.JOIN),
    (Lifecycle.DRAINING, Event.SIGNAL): (Lifecycle.DRAINING, Action.JOIN),
    (Lifecycle.DRAINING, Event.EMPTIED): (Lifecycle.DRAINED, Action.COMPLETE),
    (Lifecycle.DRAINING, Event.DEADLINE): (Lifecycle.DRAINED, Action.CUT_LATE),
    (Lifecycle.DRAINING, Event.FORCE): (Lifecycle.DRAINED, Action.CUT_NOW),
    (Lifecycle.DRAINING, Event.RESUME): (Lifecycle.READY, Action.CANCEL),
    (Lifecycle.DRAINED, Event.DRAIN): (Lifecycle.DRAINED, Action.NOTHING),
    (Lifecycle.DRAINED, Event.RESUME): (Lifecycle.READY, Action.NOTHING),
    (Lifecycle.DRAINED, Event.EXIT): (Lifecycle.STOPPING, Action.NOTHING),
    (Lifecycle.DRAINED, Event.SIGNAL): (Lifecycle.STOPPING, Action.NOTHING),
    (Lifecycle.STOPPING, Event.SIGNAL): (Lifecycle.STOPPING, Action.NOTHING),
    (Lifecycle.STOPPING, Event.ENDED): (Lifecycle.STOPPED, Action.NOTHING),
}


def step(state: Lifecycle, event: Event) -> tuple[Lifecycle, Action]:
    """Where the event leads, and what is to be done.

    Raises:
        IllegalStep: the table has no such step.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalStep(state, event) from None
