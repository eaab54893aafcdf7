"""Memory that goes while it is copied: the copy fails where that was asked for, and the process lives."""

import signal
import subprocess
import sys

import pytest

from gateway.device.copy import extension_available

pytestmark = pytest.mark.skipif(not extension_available(), reason="the C extension was not built: nothing else can")

#: Copies from a file's memory that the other thread cuts short and makes long again, as fast as it can.
PROGRAM = """
import ctypes, mmap, os, sys, threading, time
from array import array
import numpy as np
from gateway.device.copy import ChunkCopier, Region, catch_lost_memory

SIZE = 1 << 22
fd = os.memfd_create("kvgate-test")
os.ftruncate(fd, SIZE)
memory = mmap.mmap(fd, SIZE)
address = np.frombuffer(memory, np.uint8).ctypes.data
slot = np.zeros(SIZE, np.uint8)
copier = ChunkCopier([Region(address, SIZE, SIZE)], 1)
copier.gather(array("q", [0]), slot.ctypes.data)
if "catch" in sys.argv:
    catch_lost_memory()
    catch_lost_memory()  # twice is once
if "outside" in sys.argv:
    os.ftruncate(fd, 0)
    memory[0]
ends = threading.Event()

def change():
    while not ends.is_set():
        os.ftruncate(fd, 0)
        os.ftruncate(fd, SIZE)

threading.Thread(target=change, daemon=True).start()
ended = {"whole": 0, "lost": 0}
deadline = time.monotonic() + 20
while min(ended.values()) < 20 and time.monotonic() < deadline:
    for copy in (copier.gather, copier.scatter):
        try:
            copy(array("q", [0]), slot.ctypes.data)
            ended["whole"] += 1
        except OSError as error:
            assert "taken away" in str(error), error
            ended["lost"] += 1
    time.sleep(0.0002)
ends.set()
print(min(ended.values()) >= 20, ended)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_copy_whose_memory_goes_fails_and_the_next_works() -> None:
    ended = run("catch")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("True"), ended.stdout


def test_nobody_catches_it_unasked() -> None:
    assert run().returncode == -signal.SIGBUS


def test_what_is_no_copy_ends_as_it_did_before() -> None:
    assert run("catch", "outside").returncode == -signal.SIGBUS
