"""Engines in containers that lack something: the adapter says what is missing, and the engine goes on without it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import REPOSITORY, Daemon
from tests.support.namespaces import SHIFTED_CLOCKS, Mounts, needs_mounts, needs_shifted_clocks

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where pools lie


def engine_in(prefix: tuple[str, ...], run_dir: Path) -> dict[str, object]:
    """What an engine tells that is started with these words before its command."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.support.confined", "engine", str(run_dir)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def has_nothing_to_do_with_it(daemon: Daemon, told: dict[str, object]) -> None:
    assert (told["healthy"], told["loaded"], told["found"]) == (False, False, 0)
    assert daemon.snapshot().engines == ()


@needs_shifted_clocks
def test_a_time_namespace_is_named(daemon: Daemon) -> None:
    told = engine_in(SHIFTED_CLOCKS, daemon.run_dir)

    has_nothing_to_do_with_it(daemon, told)
    assert "-86400 s off" in str(told["complaints"])
    assert "time namespaces" in str(told["complaints"])


@needs_mounts
def test_a_shared_memory_of_its_own_is_named(daemon: Daemon) -> None:
    with Mounts(f"mount -t tmpfs none {SHARED_MEMORY}") as mounts:
        told = engine_in(mounts.prefix, daemon.run_dir)

    has_nothing_to_do_with_it(daemon, told)
    assert f"{daemon.pool} does not exist" in str(told["complaints"])
    assert "not shared with this process" in str(told["complaints"])


@needs_mounts
def test_another_directory_in_the_place_of_the_gateways_is_named(daemon: Daemon) -> None:
    copy = daemon.base / "copy"
    with Mounts(f"cp -r {daemon.run_dir} {copy}", f"mount --bind {copy} {daemon.run_dir}") as mounts:
        told = engine_in(mounts.prefix, daemon.run_dir)

    has_nothing_to_do_with_it(daemon, told)
    assert f"no gateway holds its lock on {daemon.pool}" in str(told["complaints"])
    assert "another directory" in str(told["complaints"])


@needs_mounts
def test_a_bind_mount_of_the_directory_is_all_that_is_needed(daemon: Daemon) -> None:
    inside = daemon.base / "inside"
    inside.mkdir()
    with Mounts(f"mount --bind {daemon.run_dir} {inside}", f"mount -t tmpfs none {daemon.run_dir}") as mounts:
        told = engine_in(mounts.prefix, inside)

    assert told == {"healthy": True, "loaded": True, "found": 0, "complaints": []}
