"""A file system or a memory limit too small for the pool: an error with the sizes, never SIGBUS, and nothing left."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.namespaces import Mounts, needs_mounts
from tests.support.party import RawParty
from tests.support.poll import until

KIB, MIB = 1 << 10, 1 << 20
POOL = 8 * MIB
#: Before the data of such a pool: header pages, namespaces, slot headers.
HEADERS = 832 * KIB

pytestmark = needs_mounts


class SmallDaemon(Daemon):
    """A daemon whose directories lie on a tmpfs of their own."""

    def __init__(self, base: Path, mounts: Mounts, place: Path, **settings: str) -> None:
        super().__init__(
            {"KVGATE_POOL_SIZE": str(POOL), **settings},
            arguments=("--run-dir", str(place / "run")),
            own_run_dir=False,
            base=base,
            prefix=mounts.prefix,
        )
        self.place = mounts.seen(place)
        self.run_dir = self.place / "run"

    def wait_ready(self, seconds: float = 30.0) -> Daemon:
        super().wait_ready(seconds)
        self.run_dir = self.place / "run"  # the way there from outside
        return self

    def free_bytes(self) -> int:
        status = os.statvfs(self.place)
        return status.f_bavail * status.f_frsize

    def leave(self, free_bytes: int) -> None:
        """Let other files take the rest of the file system."""
        (self.place / "others").write_bytes(bytes(self.free_bytes() - free_bytes))

    def reason(self) -> str:
        """Why it ended, as it says itself; it must end with 1."""
        assert self.wait() == 1, self.stderr
        assert "Traceback" not in self.stderr
        (line,) = [line for line in self.log_lines() if line["event"] in ("start_failed", "failed")]
        return str(line["reason"])

    def pools(self) -> list[str]:
        """Every file of a pool, under whatever name."""
        return [path.name for path in self.run_dir.glob("pool*")]


@contextmanager
def small(size_bytes: int, *commands: str, **settings: str) -> Iterator[SmallDaemon]:
    with Daemon() as outer:  # for its directory, and because it looks after that
        place = outer.base / "small"
        place.mkdir()
        mount = f"mount -t tmpfs -o size={size_bytes} none {place}"
        with Mounts(mount, *commands) as mounts, SmallDaemon(outer.base, mounts, place, **settings) as daemon:
            yield daemon


@pytest.mark.parametrize(
    ("free_bytes", "said"),
    [
        (0, "need 8192 bytes, the file system has 0 free"),
        (8 * KIB, f"need {HEADERS} bytes, the file system has 0 free"),
        (HEADERS // 2, f"need {HEADERS} bytes, the file system has {HEADERS // 2 - 8 * KIB} free"),
        (POOL // 2, f"needs {POOL} of {POOL + HEADERS} bytes more, the file system has"),
    ],
    ids=["no page", "two pages", "half of the headers", "half of the pool"],
)
def test_a_file_system_without_room_for_the_pool_is_an_error_with_the_sizes(free_bytes: int, said: str) -> None:
    with small(2 * POOL) as daemon:
        daemon.leave(free_bytes)

        assert said in daemon.spawn().reason()
        assert daemon.pools() == []
        assert not daemon.socket.exists()
        assert daemon.free_bytes() >= free_bytes - 4 * KIB, "the daemon's facts alone are left"


def test_it_starts_as_soon_as_there_is_room() -> None:
    with small(2 * POOL) as daemon:
        daemon.leave(POOL // 2)
        daemon.spawn().reason()
        (daemon.place / "others").unlink()

        assert daemon.start().snapshot().ready


def test_a_pool_that_has_its_memory_starts_warm_on_a_file_system_that_has_become_full() -> None:
    with small(2 * POOL) as daemon:
        daemon.start()
        with RawParty(daemon.run_dir).register() as party:
            party.store(range(3))
        daemon.kill()
        daemon.leave(0)

        assert daemon.start().snapshot().slots.ready == 3


def test_a_pool_of_another_size_is_given_the_memory_of_the_one_before() -> None:
    with small(POOL + HEADERS + 256 * KIB) as daemon:
        daemon.start()
        daemon.kill()
        daemon._settings["KVGATE_POOL_SIZE"] = str(POOL // 2)

        assert daemon.start().snapshot().slots.pool_bytes == POOL // 2
        until(lambda: daemon.pools() == ["pool"], what="the old file is gone")


def test_a_pool_larger_than_the_limit_of_the_control_group_is_an_error_with_the_sizes() -> None:
    groups = Path("/sys/fs/cgroup")
    commands = [f"mount -t tmpfs none {groups}", f"mkdir {groups}/memory"]
    for version, limit, usage in ((groups, "max", "current"), (groups / "memory", "limit_in_bytes", "usage_in_bytes")):
        commands += [f"echo {5 * MIB} > {version}/memory.{limit}", f"echo {MIB} > {version}/memory.{usage}"]
    with small(4 * POOL, *commands) as daemon:
        reason = daemon.spawn().reason()

        assert f"needs {POOL} of {POOL + HEADERS} bytes more" in reason
        assert f"({5 * MIB} bytes, {MIB} used) leaves {4 * MIB}" in reason
        assert daemon.pools() == []
        assert daemon.free_bytes() >= 4 * POOL - 4 * KIB
