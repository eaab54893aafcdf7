"""``kvgate purge``: all of a dead gateway goes, nothing of a live one, and nothing that is not a gateway's."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import purge as leftovers
from gateway.lock import DeathLock, daemon_offset
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.party import RawParty


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running.start()


def purge(daemon: Daemon, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "purge", "--run-dir", str(daemon.run_dir), *words],
        cwd=REPOSITORY, input=answer, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], *words: str) -> bool:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    return all(word in done.stderr for word in words)


def test_a_dead_gateway_is_taken_away(daemon: Daemon) -> None:
    daemon.kill()
    (daemon.run_dir / "pool.set-aside.1").write_bytes(bytes(4096))
    done = purge(daemon, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not daemon.run_dir.exists()
    assert not daemon.admin_dir.exists()
    assert {str(daemon.pool), str(daemon.run_dir), str(daemon.admin_dir)} <= set(told["removed"])
    assert told["allocated_bytes"] > 8 << 20
    assert refused(purge(daemon, "--yes"), "nothing of a gateway")
    daemon.start()


def test_a_gateway_that_lives_or_hangs_is_left_alone(daemon: Daemon) -> None:
    assert refused(purge(daemon, "--yes"), "a daemon holds its lock")
    daemon.pause()
    try:
        assert refused(purge(daemon, "--yes"), "a daemon holds its lock")
    finally:
        daemon.go_on()
    assert daemon.snapshot().ready


@pytest.mark.parametrize("is_aside", [False, True])
def test_an_engine_that_lives_keeps_its_pool(daemon: Daemon, is_aside: bool) -> None:
    with RawParty(daemon.run_dir).register():
        daemon.kill()
        if is_aside:
            daemon.pool.rename(daemon.run_dir / "pool.set-aside.1")
        assert refused(purge(daemon, "--yes"), "an engine holds its lock")
        if is_aside:
            (daemon.run_dir / "pool.set-aside.1").rename(daemon.pool)
    assert daemon.pool.exists()
    assert purge(daemon, "--yes").returncode == 0


def test_it_asks_first(daemon: Daemon) -> None:
    daemon.kill()
    for answer in ("", "n\n"):
        done = purge(daemon, answer=answer)
        assert done.returncode == 1
        assert "Remove these" in done.stderr
        assert daemon.pool.exists()
    assert purge(daemon, "--json").returncode == 2
    assert purge(daemon, answer="y\n").returncode == 0
    assert not daemon.run_dir.exists()


def test_what_is_not_a_gateway_s_stays(daemon: Daemon) -> None:
    daemon.kill()
    mine = daemon.run_dir / "notes"
    mine.write_text("mine")
    assert purge(daemon, "--yes").returncode == 0
    assert [path.name for path in daemon.run_dir.iterdir()] == ["notes"]
    mine.unlink()
    daemon.run_dir.rmdir()


def test_a_pool_that_was_removed_under_a_live_gateway_does_not_hide_it(daemon: Daemon) -> None:
    aside = daemon.base / "pool"
    daemon.pool.rename(aside)
    try:
        assert refused(purge(daemon, "--yes"), "somebody listens")
    finally:
        aside.rename(daemon.pool)


def test_a_daemon_that_starts_between_the_look_and_the_removal_wins(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.write_bytes(bytes(4096))
    found = leftovers.find(tmp_path, tmp_path / "admin")
    lock = DeathLock.take(pool, daemon_offset())
    try:
        with pytest.raises(leftovers.PurgeRefusedError, match="just started"):
            leftovers.remove(found)
    finally:
        lock.close()
    assert pool.exists()
    assert leftovers.remove(found) == (pool, tmp_path)


def test_the_pool_goes_last(daemon: Daemon) -> None:
    """Once its name is free a waiting daemon takes it: whatever were removed later would be that daemon's."""
    daemon.kill()
    found = leftovers.find(daemon.run_dir, daemon.admin_dir)
    events = daemon.run_dir / "events"
    assert found.files[-1] == daemon.pool
    assert leftovers.remove(found) == (*found.files[:-1], daemon.admin_dir, events, daemon.pool, daemon.run_dir)
