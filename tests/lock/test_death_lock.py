"""The lock as processes see it: real children, real SIGKILL, real fork and exec."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.lock import DeathLock, LockHeldError, LockObserver, daemon_offset, party_offset
from tests.support.poll import until

OFFSET = party_offset(bytes(range(16)))

# Takes the lock, then does what argv[3] says, writes one line, and waits to be killed or for its stdin to end.
HOLDER = """
import os, subprocess, sys
from gateway.lock import DeathLock
path, offset, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
lock = DeathLock.take(path, offset)
child = 0
if mode == "fork":
    child = os.fork()
    if child == 0:
        os.dup2(int(sys.argv[4]), 0)
        os.read(0, 1)
        os._exit(0)
elif mode == "exec":
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=False).pid
print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "pool"
    file.write_bytes(b"x")
    return file


@pytest.fixture
def observer(path: Path) -> Iterator[LockObserver]:
    watching = LockObserver.open(path)
    yield watching
    watching.close()


@contextlib.contextmanager
def holder(path: Path, mode: str = "plain") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the pid of the child it made."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(OFFSET), mode, str(reading)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(reading,),
        text=True,
    )
    os.close(reading)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        os.close(writing)  # a forked grandchild reads its end here and exits
        process.kill()
        process.communicate(timeout=10)


def test_offsets_are_apart_and_inside_the_kernels_range() -> None:
    assert daemon_offset() == 2**62
    assert party_offset(bytes(16)) == 2**62 + 1
    assert party_offset(b"\xff" * 16) == 2**62 + 2**61 < 2**63 - 1
    assert party_offset(b"a" * 16) != party_offset(b"b" * 16)


def test_a_free_lock_is_free_and_a_taken_one_is_held_for_its_own_process_too(
    path: Path, observer: LockObserver
) -> None:
    assert not observer.is_held(OFFSET)
    lock = DeathLock.take(path, OFFSET)
    assert observer.is_held(OFFSET)
    assert not observer.is_held(OFFSET + 1)
    assert lock.inode == observer.inode == (path.stat().st_dev, path.stat().st_ino)
    lock.close()
    lock.close()
    assert not observer.is_held(OFFSET)


def test_second_taker_is_refused_and_disturbs_nothing(path: Path, observer: LockObserver) -> None:
    lock = DeathLock.take(path, OFFSET)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(LockHeldError, match="pool"):
        DeathLock.take(path, OFFSET)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert observer.is_held(OFFSET)
    other = DeathLock.take(path, OFFSET + 1)
    lock.close()
    other.close()


def test_of_two_ids_that_share_a_place_only_one_can_live(path: Path) -> None:
    one, other = bytes(16), (2**61).to_bytes(16, "big")
    lock = DeathLock.take(path, party_offset(one))
    with pytest.raises(LockHeldError):
        DeathLock.take(path, party_offset(other))
    lock.close()


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DeathLock.take(tmp_path / "none", OFFSET)
    assert not list(tmp_path.iterdir())


def test_closing_another_descriptor_of_the_file_does_not_drop_it(path: Path, observer: LockObserver) -> None:
    lock = DeathLock.take(path, OFFSET)
    path.read_bytes()
    with path.open("r+b"):
        pass
    LockObserver.open(path).close()
    assert observer.is_held(OFFSET)
    lock.close()


def test_dropping_the_object_keeps_the_lock(path: Path, observer: LockObserver) -> None:
    lock = DeathLock.take(path, OFFSET)
    fd = lock._fd
    del lock
    assert observer.is_held(OFFSET)
    os.close(fd)


def test_held_by_a_process_and_free_after_sigkill(path: Path, observer: LockObserver) -> None:
    with holder(path) as (process, _):
        assert observer.is_held(OFFSET)
        with pytest.raises(LockHeldError):
            DeathLock.take(path, OFFSET)
        os.kill(process.pid, signal.SIGSTOP)
        assert observer.is_held(OFFSET), "a stopped process is not dead"
        os.kill(process.pid, signal.SIGKILL)
        assert until(lambda: not observer.is_held(OFFSET))


@pytest.mark.parametrize("mode", ["fork", "exec"])
def test_a_child_does_not_keep_its_dead_parents_lock(path: Path, observer: LockObserver, mode: str) -> None:
    with holder(path, mode) as (process, child):
        try:
            assert observer.is_held(OFFSET)
            os.kill(process.pid, signal.SIGKILL)
            assert until(lambda: not observer.is_held(OFFSET))
            os.kill(child, 0)  # the child lives
        finally:
            if mode == "exec":
                os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_dies_does_not_drop_its_parents_lock(path: Path, observer: LockObserver) -> None:
    with holder(path, "fork") as (process, child):
        os.kill(child, signal.SIGKILL)
        assert until(lambda: Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")
        assert observer.is_held(OFFSET)
        assert process.poll() is None


def test_the_inode_is_watched_not_the_name(path: Path, observer: LockObserver) -> None:
    lock = DeathLock.take(path, OFFSET)
    path.rename(path.with_name("aside"))
    path.write_bytes(b"new")
    assert observer.is_held(OFFSET)
    fresh = LockObserver.open(path)
    assert not fresh.is_held(OFFSET)
    assert fresh.inode != lock.inode
    fresh.close()
    lock.close()


def test_any_party_is_seen_and_the_daemon_is_no_party(path: Path, observer: LockObserver) -> None:
    daemon = DeathLock.take(path, daemon_offset())
    assert not observer.is_any_party_held()
    for party in (bytes(16), b"\xff" * 16):
        lock = DeathLock.take(path, party_offset(party))
        assert observer.is_any_party_held()
        lock.close()
    assert not observer.is_any_party_held()
    daemon.close()
