"""Who may use the shared directory, tried as a user without privileges: no test here relies on what root may not do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, SETTINGS, Daemon

NOBODY = 65534
GROUP = 12345
IDS = f"uid {NOBODY}, gid {NOBODY}"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared() -> Iterator[Daemon]:
    """A daemon that shares its directory with a group, started under a umask that would forbid it."""
    with Daemon({"KVGATE_RUN_DIR_GROUP": str(GROUP)}, umask=0o077) as daemon:
        daemon.base.chmod(0o711)  # the way to the directory under test
        yield daemon.start()


def confined(
    *arguments: str | Path, groups: str = "", settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.confined", "--user", str(NOBODY), "--groups", groups, *arguments],
        cwd=REPOSITORY,
        env={**environ, **(settings or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def engine_in(run_dir: Path, groups: str = "") -> dict[str, object]:
    done = confined("engine", run_dir, groups=groups)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def why_serve_fails(run_dir: Path, **settings: str) -> str:
    """What a daemon of that user says when it cannot start."""
    done = confined("kvgate", "serve", "--run-dir", run_dir, settings={**SETTINGS, **settings})
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if "start_failed" in line]
    assert "Traceback" not in done.stderr
    return str(line["reason"])


def test_an_engine_in_the_group_stores_and_loads(shared: Daemon) -> None:
    told = engine_in(shared.run_dir, groups=str(GROUP))

    assert told == {"healthy": True, "loaded": True, "found": 0, "complaints": []}


def test_an_engine_outside_the_group_is_told_what_keeps_it_out_and_finds_nothing(shared: Daemon) -> None:
    told = engine_in(shared.run_dir, groups="4,5")

    assert (told["healthy"], told["found"]) == (False, 0)
    complaint = str(told["complaints"])
    for part in (str(shared.pool), f"{shared.run_dir} (mode 2770, uid 0, gid {GROUP})", IDS, "groups 4 5"):
        assert part in complaint
    assert shared.snapshot().engines == ()


def test_an_engine_that_may_open_the_pool_and_not_the_socket_is_told_so(shared: Daemon) -> None:
    shared.socket.chmod(0o600)

    told = engine_in(shared.run_dir, groups=str(GROUP))

    assert told["healthy"] is False
    assert f"{shared.socket} (mode 0600, uid 0, gid {GROUP})" in str(told["complaints"])
    assert IDS in str(told["complaints"])


def test_what_appears_in_the_directory_later_belongs_to_the_group_too(shared: Daemon) -> None:
    (shared.run_dir / "made later").write_text("")

    assert (shared.run_dir / "made later").stat().st_gid == GROUP


def test_without_a_group_only_the_user_can_reach_it(daemon: Daemon) -> None:
    daemon.base.chmod(0o711)

    told = engine_in(daemon.run_dir)

    assert told["healthy"] is False
    assert f"{daemon.run_dir} (mode 0700, uid 0, gid 0)" in str(told["complaints"])


def test_operators_of_another_user_are_told_what_keeps_them_out(shared: Daemon) -> None:
    done = confined("kvgate", "status", "--run-dir", shared.run_dir, groups=str(GROUP))

    assert done.returncode == 4
    for part in (str(shared.admin_socket), f"{shared.admin_dir} (mode 0700, uid 0, gid 0)", IDS):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def mine() -> Iterator[Path]:
    """A directory of that user, which it can reach."""
    with Daemon() as daemon:
        daemon.base.chmod(0o711)
        home = daemon.base / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        yield home


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_daemon_cannot_take_a_directory_of_root(mine: Path, mode: int) -> None:
    run_dir = mine / "run"
    run_dir.mkdir(mode=mode)

    reason = why_serve_fails(run_dir)

    assert f"{run_dir} (mode {mode:04o}, uid 0, gid 0)" in reason
    assert IDS in reason
    assert list(run_dir.iterdir()) == []


def test_a_daemon_cannot_make_a_directory_inside_one_of_root(mine: Path) -> None:
    parent = mine / "roots"
    parent.mkdir(mode=0o700)

    reason = why_serve_fails(parent / "run")

    assert f"{parent} (mode 0700, uid 0, gid 0)" in reason
    assert IDS in reason


def test_a_daemon_cannot_take_over_the_pool_of_another_user(mine: Path) -> None:
    run_dir = mine / "run"
    run_dir.mkdir()
    os.chown(run_dir, NOBODY, NOBODY)
    pool = run_dir / "pool"
    pool.touch(mode=0o600)

    reason = why_serve_fails(run_dir)

    assert f"{pool} (mode 0600, uid 0, gid 0)" in reason
    assert IDS in reason
    assert pool.stat().st_size == 0


def test_a_daemon_cannot_take_an_admin_directory_of_root(mine: Path) -> None:
    admin = mine / "admin"
    admin.mkdir(mode=0o755)

    reason = why_serve_fails(mine / "run", KVGATE_ADMIN_DIR=str(admin))

    assert f"{admin} (mode 0755, uid 0, gid 0)" in reason
    assert IDS in reason


def test_a_daemon_cannot_share_with_a_group_it_is_not_in(mine: Path) -> None:
    reason = why_serve_fails(mine / "run", KVGATE_RUN_DIR_GROUP=str(GROUP))

    assert "mode 2770" in reason
    assert f"group {GROUP}" in reason
    assert IDS in reason
