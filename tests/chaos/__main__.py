"""Gateway and engines under blows: ``make chaos``, or ``python -m tests.chaos --seconds 60 --seed 7``.

A gateway with a pool that is too small, four engines that look at every byte they get, and an operator. At random, but
the same for the same seed, each is killed and stopped, replies are delayed, connections cut, garbage is sent, the
gateway is drained, resumed and cleared. At the end nothing may be pending, held or left, and no byte wrong; the exit
status says so.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gateway.client import GatewayRefused, GatewayUnreachable
from gateway.wire.codes import State, SwitchMode, SwitchScope
from gateway.wire.messages import Clear, Drain, Request, Resume, Switch
from tests.chaos.fleet import EngineSeat
from tests.chaos.rough_line import RoughLine
from tests.chaos.schedule import BLOWS, NUM_ENGINES, Blow, blows
from tests.support.daemon import Daemon
from tests.support.poll import until

SETTLE_SECONDS = 60.0
NUM_ROUGH = 2  # engines that reach the gateway over a rough line
_BY = {"number": 0, "requested_by": "chaos", "reason": "chaos"}


class Chaos:
    """One run. Every blow that holds for a while leaves behind how it is undone, and when."""

    def __init__(self, home: Path, seed: int, *, manner: str) -> None:
        self._dice = random.Random(seed)
        # Timers as in use: on a machine that is busy with all this, shorter ones would see death everywhere.
        timers = {"KVGATE_HEARTBEAT_SECONDS": "1", "KVGATE_LEASE_SECONDS": "10"}
        self._daemon = Daemon({**timers, "KVGATE_MIN_CHUNK_BYTES": "64KiB"}, base=home)
        self._daemon.start(SETTLE_SECONDS * 2)
        self.lines = [RoughLine(home / f"line-{i}", self._daemon.run_dir, seed + i) for i in range(NUM_ROUGH)]
        roads = [line.run_dir for line in self.lines] + [self._daemon.run_dir] * (NUM_ENGINES - NUM_ROUGH)
        self.seats = [
            EngineSeat(f"engine-{i}", road, home, seed * 10 + i, manner=manner) for i, road in enumerate(roads)
        ]
        for seat in self.seats:
            seat.start()
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self.struck: Counter[str] = Counter()
        self._strike: dict[str, Callable[[Blow, EngineSeat], None]] = {
            "kill gateway": self._kill_gateway,
            "pause gateway": self._pause_gateway,
            "kill engine": lambda _, seat: seat.kill(),
            "pause engine": self._pause_engine,
            "drain": lambda blow, _: self._drain(blow, ""),
            "drain an engine": lambda blow, seat: self._drain(blow, seat.name),
            "switch": self._switch,
            "clear": lambda *_: self._order(Clear(**_BY, all=True)),
            "garbage": lambda *_: self._garbage(),
            "cut connections": lambda *_: [line.cut() for line in self.lines],
            "delay replies": lambda blow, _: [line.delay(blow.hold_seconds) for line in self.lines],
        }
        assert self._strike.keys() == BLOWS.keys()

    def run(self, seconds: float, seed: int) -> None:
        """Let the engines come up, then strike for so long."""
        until(lambda: self._each(lambda told: told.requests > 3), SETTLE_SECONDS, "engines serve")
        end = time.monotonic() + seconds
        for blow in blows(seed):
            self._follow(min(end, time.monotonic() + blow.wait_seconds))
            if time.monotonic() >= end:
                return
            self._strike[blow.what](blow, self.seats[blow.engine])
            self.struck[blow.what] += 1

    def come_to_rest(self) -> None:
        """Undo what still holds; see that hits come back and that everything settles."""
        for _, undo in self._undo:
            undo()
        self._undo.clear()
        again: list[Request] = [Resume(**_BY)]  # what was not heard before is heard now
        for seat in self.seats:
            again += [Resume(**_BY, engine=seat.name), Switch(**_BY, scope=SwitchScope.ENGINE, name=seat.name)]
        for request in again:
            until(lambda request=request: self._order(request), SETTLE_SECONDS, f"{request} is heard")
        until(lambda: self._each(lambda told: told.state == State.HEALTHY), SETTLE_SECONDS, "engines are healthy again")
        before = [seat.latest.loaded_chunks for seat in self.seats]
        until(
            lambda: (
                self._each(lambda _: True)
                and all(seat.latest.loaded_chunks > had for seat, had in zip(self.seats, before, strict=True))
            ),
            SETTLE_SECONDS,
            "each engine loads again",
        )
        for seat in self.seats:
            seat.rest()
        until(lambda: self._each(lambda told: told.event == "idle"), 2 * SETTLE_SECONDS, "engines settle")

    def findings(self) -> list[str]:
        """What is not as it must be, once all is at rest; ends the engines and the gateway."""
        problems = []
        for seat in self.seats:
            told = seat.latest
            pending = (told.pending_stores, told.pending_retrieves, told.retained_events)
            if any(pending):
                problems.append(f"{seat.name} has pending stores, retrieves, retained events: {pending}")
            problems += [
                f"{seat.name}: {seat.total(name)} {name}" for name in ("wrong_chunks", "late_loads") if seat.total(name)
            ]
            if not seat.total("loaded_chunks") or not seat.total("stored"):
                problems.append(f"{seat.name} has loaded or stored nothing: the run shows nothing")
            if status := seat.end(30):
                problems.append(f"{seat.name} ended with {status}")
            if "Traceback" in seat.log:
                problems.append(f"{seat.name} failed:\n{seat.log[-2000:]}")
        for line in self.lines:
            line.close()
        problems += self._gateway_findings()
        return problems

    def _gateway_findings(self) -> list[str]:
        def left() -> dict[str, float]:
            snapshot = self._daemon.snapshot()
            slots = snapshot.slots
            held = {f"{s.name} {s.labels}": s.value for s in snapshot.gauges if s.name in ("leases", "reservations")}
            assert len(held) == 3, "leases of two kinds, and reservations"
            parties = sum(len(engine.parties) for engine in snapshot.engines)
            return {**held, "parties": parties, "writing": slots.writing_bytes, "quarantined": slots.quarantined_bytes}

        problems = []
        try:
            until(lambda: not any(left().values()), 15)
        except AssertionError:
            problems.append(f"the gateway holds after all engines left: {left()}")
        try:
            self._daemon.close()
        except AssertionError as error:
            problems.append(f"{error}")
        return problems

    @property
    def standing(self) -> str:
        """What each engine told last."""
        return "\n".join(f"{seat.name}: {seat.latest}" for seat in self.seats)

    @property
    def gateway_log(self) -> str:
        """All that every gateway of the run has logged."""
        return self._daemon.stderr

    def close(self) -> None:
        """End whatever is still there."""
        for seat in self.seats:
            if seat.is_running:
                seat.end(5)
        for line in self.lines:
            line.close()
        self._daemon.close()

    # -- blows

    def _kill_gateway(self, *_: object) -> None:
        self._daemon.kill()
        self._daemon.start(SETTLE_SECONDS * 2)

    def _pause_gateway(self, blow: Blow, _: EngineSeat) -> None:
        self._daemon.pause()
        self._undo_in(blow.hold_seconds, self._daemon.go_on)

    def _pause_engine(self, blow: Blow, seat: EngineSeat) -> None:
        seat.pause()
        self._undo_in(blow.hold_seconds, seat.go_on)

    def _drain(self, blow: Blow, engine: str) -> None:
        self._order(Drain(**_BY, engine=engine, deadline_seconds=blow.hold_seconds))
        self._undo_in(blow.hold_seconds, lambda: self._order(Resume(**_BY, engine=engine)))

    def _switch(self, blow: Blow, seat: EngineSeat) -> None:
        where = {"scope": SwitchScope.ENGINE, "name": seat.name}
        self._order(Switch(**_BY, **where, mode=SwitchMode(blow.mode)))
        self._undo_in(blow.hold_seconds, lambda: self._order(Switch(**_BY, **where)))

    def _order(self, request: Request) -> bool:
        """An operator's request; a gateway that hangs or has just been killed does not hear it, as in life."""
        try:
            with self._daemon.admin_client(timeout_seconds=0.5) as client:
                client.request(request)
        except GatewayUnreachable:
            return False
        except GatewayRefused as error:
            print(f"   refused: {error}")
        return True

    def _garbage(self) -> None:
        with self._daemon.dealer() as dealer:
            for _ in range(20):
                frames = [self._dice.randbytes(self._dice.randrange(200)) for _ in range(self._dice.randrange(1, 4))]
                dealer.send_frames(*frames)

    def _undo_in(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))

    # -- following

    def _follow(self, until_time: float) -> None:
        while (now := time.monotonic()) < until_time:
            due = [one for one in self._undo if one[0] <= now]
            for one in due:
                self._undo.remove(one)
                one[1]()
            for seat in self.seats:
                seat.listen()
                assert seat.is_running, f"{seat.name} has ended by itself:\n{seat.log[-2000:]}"
            assert self._daemon.is_running, f"the gateway has ended by itself:\n{self._daemon.stderr[-2000:]}"
            time.sleep(0.02)

    def _each(self, holds: Callable[..., bool]) -> bool:
        for seat in self.seats:
            seat.listen()
        return all(holds(seat.latest) for seat in self.seats)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long blows fall")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--careless", action="store_true", help="with a fault in each engine, which must be found")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C nothing is left behind
    print(f"seed {options.seed}, {options.seconds:g} s; the same blows again: --seed {options.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="kvgate-chaos-", dir="/dev/shm"))
    try:
        chaos = Chaos(home, options.seed, manner="careless" if options.careless else "")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    try:
        chaos.run(options.seconds, options.seed)
        chaos.come_to_rest()
        problems = chaos.findings()
    except AssertionError as error:
        problems = [f"{error}\n{chaos.standing}\nthe gateway's log ends with:\n{chaos.gateway_log[-3000:]}"]
    finally:
        chaos.close()
        shutil.rmtree(home, ignore_errors=True)
    totals = {name: sum(seat.total(name) for seat in chaos.seats) for name in ("requests", "loaded_chunks", "stored")}
    print(f"{sum(chaos.struck.values())} blows: {dict(chaos.struck)}")
    print(", ".join(f"{value:,} {name}" for name, value in totals.items()))
    for problem in problems:
        print(f"FAILED (seed {options.seed}): {problem}")
    print("failed" if problems else "nothing wrong, pending, held or left")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
