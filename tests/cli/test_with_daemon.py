"""The command line and a real daemon."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from gateway.lock import LockObserver, daemon_offset
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.party import RawParty
from tests.support.poll import until


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running.start()


def kvgate(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words, "--run-dir", str(daemon.run_dir)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_drain_and_resume(daemon: Daemon) -> None:
    assert kvgate(daemon, "status").returncode == 0
    drained = kvgate(daemon, "drain", "--reason", "kernel update")
    assert (drained.returncode, drained.stdout.startswith("completed in")) == (0, True)
    assert kvgate(daemon, "drain").returncode == 0, "repeating it is harmless"
    assert kvgate(daemon, "status").returncode == 5
    assert kvgate(daemon, "resume").stdout == "the gateway is ready\n"
    assert kvgate(daemon, "resume").returncode == 0
    state = json.loads(kvgate(daemon, "status", "--json").stdout)
    assert (state["ready"], state["boot_id"]) == (True, daemon.ready_line["boot_id"])
    (first, *_) = daemon.log_lines("audit")
    assert str(first["who"]).endswith("(kvgate)")
    assert str(first["peer"]).startswith("pid ")
    assert first["reason"] == "kernel update"


def test_a_drain_waits_for_what_is_under_way(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        number = party.next_operation()
        (grant,) = party.reserve((1,), number)
        done: list[subprocess.CompletedProcess[str]] = []
        waiting = threading.Thread(target=lambda: done.append(kvgate(daemon, "drain", "--deadline", "60")))
        waiting.start()
        try:
            until(lambda: daemon.snapshot().state == "draining", 30, "draining")
            party.write(grant, 1)
            party.commit(number, grant.generation)
        finally:
            waiting.join()
    assert done[0].returncode == 0, done[0].stderr
    assert "0 cut" in done[0].stdout


def test_force_cuts_and_says_so(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.reserve((1,), party.next_operation())
        cut = kvgate(daemon, "drain", "--force")
    assert cut.returncode == 3
    assert "1 cut" in cut.stdout


def test_one_engine(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register():
        drained = kvgate(daemon, "drain", "--engine", "engine-a")
        assert (drained.returncode, "engine engine-a is drained" in drained.stdout) == (0, True)
        assert "drained" in kvgate(daemon, "engines").stdout
        assert "engine engine-a is ready" in kvgate(daemon, "resume", "--engine", "engine-a").stdout
        assert kvgate(daemon, "status").returncode == 0


def test_exit_stops_the_daemon_when_drained(daemon: Daemon) -> None:
    assert kvgate(daemon, "drain", "--exit").returncode == 0
    assert daemon.wait(30) == 0
    assert kvgate(daemon, "status").returncode == 4


def test_when_an_exiting_drain_returns_the_next_may_have_the_pool(daemon: Daemon) -> None:
    """The daemon is slow to leave: its admin process is stopped, and is waited for."""
    (admin,) = (pid for pid in daemon.processes() if pid != daemon.pid)
    os.kill(admin, signal.SIGSTOP)
    observer = LockObserver.open(daemon.pool)
    try:
        assert kvgate(daemon, "drain", "--exit").returncode == 0
        assert not observer.is_held(daemon_offset())
    finally:
        observer.close()
    purged = kvgate(daemon, "purge", "--yes")
    assert purged.returncode == 0, purged.stderr


def test_an_exiting_drain_that_cuts_exits_3(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.reserve((1,), party.next_operation())
        assert kvgate(daemon, "drain", "--exit", "--deadline", "0.3").returncode == 3
        assert daemon.wait(30) == 0


def test_a_stopped_daemon_is_unreachable(daemon: Daemon) -> None:
    daemon.pause()
    try:
        hung = kvgate(daemon, "status", "--timeout", "0.5")
    finally:
        daemon.go_on()
    assert hung.returncode == 4
    assert hung.stderr.startswith("kvgate: ")
