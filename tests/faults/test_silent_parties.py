"""Ranks that have nothing to say, and tools that come and go: silence takes no registration away, leaving does."""

import time
from pathlib import Path

from gateway.wire.codes import Role
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.party import RawParty
from tests.support.poll import until

NUM_VISITS = 30


def parties(daemon: Daemon) -> float:
    return sum(sample.value for sample in daemon.snapshot().gauges if sample.name == "parties")


def test_four_ranks_that_say_nothing_for_long_are_still_registered(daemon: Daemon) -> None:
    ranks = [RawParty(daemon.run_dir, group="ranks", namespace=b"%016d" % i) for i in range(4)]
    scheduler = RawParty(daemon.run_dir, Role.SCHEDULER, group="ranks")
    for party in (*ranks, scheduler):
        party.register()
    ranks[0].store((1, 2))
    quiet_until = time.monotonic() + 4.0  # twenty heartbeats, and more than a lease

    until(lambda: time.monotonic() > quiet_until, what="they have been silent for long")

    assert parties(daemon) == 5
    assert all(party.ping().known for party in (*ranks, scheduler))
    assert ranks[3].load((1,)) == [None]  # another namespace: served, and a miss
    for party in (*ranks, scheduler):
        party.close()
    until(lambda: parties(daemon) == 0, what="their locks are free, they are gone")


def test_visitors_leave_nothing_behind(daemon: Daemon) -> None:
    def open_files() -> int:
        return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

    with Engine(daemon.run_dir):
        pass
    until(lambda: parties(daemon) == 0, what="the first is gone")
    files_before, names_before = open_files(), names(daemon.run_dir)

    for _ in range(NUM_VISITS):
        with Engine(daemon.run_dir).wait_healthy():
            pass

    until(lambda: parties(daemon) == 0, what="all are gone")
    until(lambda: open_files() <= files_before, what="no descriptor of theirs is open")
    assert names(daemon.run_dir) == names_before


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}
