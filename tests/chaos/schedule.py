"""What goes wrong, and when: a function of the seed. Owns: the order of blows. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

NUM_ENGINES = 4

#: Each blow with its weight. Pauses last longer than what makes a gateway or an engine look dead.
BLOWS = {
    "kill gateway": 2,
    "pause gateway": 3,
    "kill engine": 4,
    "pause engine": 4,
    "drain": 3,
    "drain an engine": 2,
    "switch": 3,
    "clear": 1,
    "garbage": 4,
    "cut connections": 4,
    "delay replies": 3,
}


@dataclass(frozen=True)
class Blow:
    """One thing done to the system, so many seconds after the one before."""

    wait_seconds: float
    what: str
    engine: int
    hold_seconds: float  # of a pause, a drain's deadline, a switch, a delay
    mode: str  # of a switch


def blows(seed: int) -> Iterator[Blow]:
    """Without end; the same for the same seed."""
    dice = random.Random(seed)
    while True:
        yield Blow(
            wait_seconds=dice.uniform(0.2, 2.0),
            what=dice.choices(list(BLOWS), weights=list(BLOWS.values()))[0],
            engine=dice.randrange(NUM_ENGINES),
            hold_seconds=dice.choice((0.05, 0.5, 1.5, 3.0)),
            mode=dice.choice(("off", "no_store", "no_load")),
        )
