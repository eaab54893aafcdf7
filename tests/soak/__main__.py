"""A gateway in use for an hour, and nothing of it may grow: ``make soak``, or ``python -m tests.soak --seconds 60``.

Two engines stay, one that copies itself and one that the gateway copies for; two more come and go, killed or in order.
All look at every byte they load. An operator drains, resumes, switches and clears now and then; scrapes, clients of the
admin API and watchers of the page come and go. Meanwhile everything that could grow is read: memory, descriptors,
threads, mappings and files, every table of the gateway and of both halves of the engines. At the end each series is
flat, each history within its bound, each table that is empty at rest empty; the table says which, the exit status
whether all are. The rules are in ``rules.py``, what flat means is in ``flatness.py``.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from gateway.wire.codes import State
from tests.chaos.fleet import EngineSeat
from tests.soak.flatness import Verdict, judge
from tests.soak.operator import Visitors
from tests.soak.rules import idle_rules, rule_for
from tests.soak.watch import Watch
from tests.support.daemon import Daemon
from tests.support.poll import until

SETTLE_SECONDS = 120.0
REST_SECONDS = 15.0
PROGRESS_SECONDS = 10.0
#: Timers as in use. Checking every invariant at every step would be most of the work, and is not what is looked at.
SETTINGS = {
    "KVGATE_HEARTBEAT_SECONDS": "1",
    "KVGATE_LEASE_SECONDS": "10",
    "KVGATE_MIN_CHUNK_BYTES": "64KiB",
    "KVGATE_VERIFY": "",
}
STAYING = {"staying-pool": "", "staying-handle": "handle"}
PASSING = {"passing-pool": "", "passing-handle": "handle"}


class Soak:
    """One run."""

    def __init__(self, home: Path, seed: int, *, manner: str = "") -> None:
        self._dice = random.Random(seed)
        self._daemon = Daemon(SETTINGS, base=home).start(SETTLE_SECONDS)
        manners = {**STAYING, **PASSING}
        manners["staying-handle"] += f" {manner}"
        self.seats = {
            name: EngineSeat(name, self._daemon.run_dir, home, 10 * seed + i, manner=words)
            for i, (name, words) in enumerate(manners.items())
        }
        for seat in self.seats.values():
            seat.start()
        self._leaving: set[str] = set()
        self._visitors = Visitors(self._daemon.admin_url, list(self.seats), seed)
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.at_rest: dict[str, float] = {}
        self.seconds = 0.0
        self.rate = 0.0  #: requests a second
        self.failures: list[str] = []
        self._num_gone = 0
        self._num_killed = 0

    def run(self, seconds: float) -> None:
        """Let them all come, then read for so long."""
        until(lambda: self._each("requests", 3), SETTLE_SECONDS, "engines serve")
        watch = Watch(self._daemon, [self.seats[name] for name in STAYING])
        self._watch = watch
        self.seconds = seconds
        began, every = time.monotonic(), min(max(0.2, seconds / 200), 2.0)
        before = self.total("requests")
        read_at = visit_at = told_at = went_at = 0.0
        while (elapsed := time.monotonic() - began) < seconds:
            self._visitors.undo()
            self._follow()
            if elapsed >= visit_at:
                self._visitors.visit()
                visit_at = elapsed + self._dice.uniform(0.2, 1.2)
            if elapsed >= went_at:
                if went_at:
                    self._send_away()
                went_at = elapsed + self._dice.uniform(10, 20)
            if elapsed >= read_at:
                self._note(elapsed, {**watch.read(), "admin points": self._visitors.num_points})
                read_at = elapsed + every
            if elapsed >= told_at + PROGRESS_SECONDS:
                told_at = elapsed
                self._tell(elapsed, self.total("requests") - before)
            time.sleep(0.02)
        self.rate = (self.total("requests") - before) / seconds

    def come_to_rest(self, patience_seconds: float) -> None:
        """Let everything end; what must be empty at rest is read until it is."""
        self._visitors.leave()
        until(lambda: not self._leaving or self._follow(), SETTLE_SECONDS, "those that leave have left")
        for seat in self.seats.values():
            until(lambda seat=seat: self._listened(seat).requests > 3, SETTLE_SECONDS, "it serves")
            seat.rest()
        until(
            lambda: all(self._listened(seat).event == "idle" for seat in self.seats.values()),
            SETTLE_SECONDS,
            "engines settle",
        )
        for name in STAYING:
            tables = self.seats[name].latest.tables
            self.at_rest |= {f"{name} {table}": entries for table, entries in tables.items()}
        for seat in self.seats.values():
            if status := seat.end(30):
                self.failures.append(f"{seat.name} ended with {status}")
            wrong = seat.total("wrong_chunks"), seat.total("late_loads")
            if any(wrong):
                self.failures.append(f"{seat.name}: wrong chunks, late loads: {wrong}")
            if "Traceback" in seat.log:
                self.failures.append(f"{seat.name} failed:\n{seat.log[-2000:]}")
        self.failures += [f"no series is {pattern!r}, of which there is a rule" for pattern in idle_rules(self.series)]
        deadline = time.monotonic() + patience_seconds
        while not self._is_empty() and time.monotonic() < deadline:
            time.sleep(0.1)

    def verdicts(self) -> list[Verdict]:
        """Of every series, the worst first."""
        found = [
            judge(name, rule_for(name), readings, self.seconds, self.at_rest.get(name))
            for name, readings in self.series.items()
        ]
        return sorted(found, key=lambda verdict: (not verdict.problem, verdict.name))

    def total(self, name: str) -> int:
        """A count over all engines and all their lives."""
        return sum(seat.total(name) for seat in self.seats.values())

    @property
    def is_complete(self) -> bool:
        """Whether it ran for as long as it was to: else nothing can be said of any series."""
        return self.rate > 0

    @property
    def summary(self) -> str:
        """What was done."""
        counts = ", ".join(
            f"{self.total(name):,} {name}" for name in ("requests", "hit_chunks", "loaded_chunks", "stored")
        )
        visits = ", ".join(f"{count} x {kind}" for kind, count in self._visitors.visits.most_common())
        return (
            f"{counts}; {self.rate:.1f} requests/s, {3600 * self.rate:,.0f} an hour\n"
            f"{self._num_gone} engines ended in order, {self._num_killed} killed; {visits}"
        )

    @property
    def log(self) -> str:
        """Of the gateway."""
        return self._daemon.stderr

    def close(self) -> None:
        """End whatever is still there."""
        for seat in self.seats.values():
            if seat.is_running:
                seat.end(5)
        self._daemon.close()

    def _is_empty(self) -> bool:
        tables = {f"gateway {table}": entries for table, entries in self._watch.tables()}
        self.at_rest |= tables
        return not any(entries for name, entries in tables.items() if rule_for(name).is_empty_at_rest)

    def _note(self, elapsed: float, readings: dict[str, float]) -> None:
        for name, level in readings.items():
            self.series.setdefault(name, []).append((elapsed, level))

    def _send_away(self) -> None:
        """One of those that come and go is killed, or asked to leave."""
        name = self._dice.choice(list(PASSING))
        if name in self._leaving:
            return
        if self._dice.random() < 0.5:
            self.seats[name].kill()
            self._num_killed += 1
        else:
            self.seats[name].leave()
            self._leaving.add(name)

    def _follow(self) -> bool:
        """Hear everybody; whoever has left is followed by another. Returns whether nobody is about to leave."""
        for name, seat in self.seats.items():
            seat.listen()
            if seat.is_running:
                continue
            assert name in self._leaving, f"{name} has ended by itself:\n{seat.log[-2000:]}"
            self._leaving.remove(name)
            self._num_gone += 1
            if status := seat.follow():
                self.failures.append(f"{name} left with {status}")
        assert self._daemon.is_running, f"the gateway has ended by itself:\n{self._daemon.stderr[-2000:]}"
        return not self._leaving

    def _each(self, name: str, least: int) -> bool:
        return all(getattr(self._listened(seat), name) > least for seat in self.seats.values())

    def _tell(self, elapsed: float, num_requests: int) -> None:
        now = {name: readings[-1][1] for name, readings in self.series.items()}
        healthy = sum(seat.latest.state == State.HEALTHY for seat in self.seats.values())
        print(
            f"{elapsed:6.0f} s  {num_requests:7,} requests  {num_requests / elapsed:5.1f}/s  {healthy} healthy  "
            f"MiB: gateway {now['gateway resident']:.0f}, admin {now['admin resident']:.0f}, "
            f"engines {now['staying-pool resident']:.0f} and {now['staying-handle resident']:.0f}  "
            f"descriptors {now['gateway descriptors']:.0f}  sessions {now['gateway sessions']:.0f}  "
            f"files {now['files run_dir']:.0f}",
            flush=True,
        )

    @staticmethod
    def _listened(seat: EngineSeat):
        seat.listen()
        return seat.latest


def as_table(verdicts: list[Verdict]) -> str:
    """The verdicts in lines; series that stayed at 0 in one."""
    lines = [f"{'series':42} {'first':>10} {'last':>10} {'slope/h':>10} {'at least':>10} {'allowed':>10}  verdict"]
    still = 0
    for one in verdicts:
        if not (one.problem or one.first or one.last or one.slope):
            still += 1
            continue
        name = f"{one.name} {one.unit}".strip()
        numbers = " ".join(
            f"{value:10,.1f}" for value in (one.first, one.last, one.slope, one.lowest_slope, one.allowed)
        )
        lines.append(f"{name:42} {numbers}  {one.problem or 'flat'}")
    return "\n".join([*lines, f"and {still} series that were 0 from the first to the last"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long is read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hoarding", action="store_true", help="with a leak in one engine, which must be found")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C nothing is left behind
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    home = Path(tempfile.mkdtemp(prefix="kvgate-soak-", dir="/dev/shm"))
    try:
        soak = Soak(home, options.seed, manner="hoarding" if options.hoarding else "")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    try:
        soak.run(options.seconds)
        soak.come_to_rest(0.5 if options.hoarding else REST_SECONDS)
    except AssertionError as error:
        soak.failures.append(f"{error}\nthe gateway's log ends with:\n{soak.log[-3000:]}")
    finally:
        try:
            soak.close()
        finally:
            shutil.rmtree(home, ignore_errors=True)
    verdicts = soak.verdicts() if soak.is_complete else []
    print(as_table(verdicts))
    print(soak.summary)
    problems = [*soak.failures, *(f"{verdict.name}: {verdict.problem}" for verdict in verdicts if verdict.problem)]
    for problem in problems:
        print(f"FAILED (seed {options.seed}): {problem}")
    print("failed" if problems else f"{len(verdicts)} series are flat")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
