"""Memory that goes while it is copied: the copy fails where that was asked for, and the process lives."""

import signal
import subprocess
import sys

import pytest

from gateway.device.copy import extension_available

pytestmark = pytest.mark.skipif(not extension_available(), reason="the C extension was not built: nothing else can")

#: Copies to and from a file's memory that was cut short, that is whole again, and that another thread cuts meanwhile.
PROGRAM = """
import mmap, os, sys, threading, time
from array import array
import numpy as np
from gateway.device.copy import ChunkCopier, Region, catch_lost_memory

SIZE = 1 << 22
fd = os.memfd_create("kvgate-test")
os.ftruncate(fd, SIZE)
memory = mmap.mmap(fd, SIZE)
address = np.frombuffer(memory, np.uint8).ctypes.data
slot = np.ones(SIZE, np.uint8)
copier = ChunkCopier([Region(address, SIZE, SIZE)], 1)
ended = {"whole": 0, "lost": 0}

def copy():
    for one in (copier.gather, copier.scatter):
        try:
            one(array("q", [0]), slot.ctypes.data)
            ended["whole"] += 1
        except OSError as error:
            assert "taken away" in str(error), error
            ended["lost"] += 1

if "catch" in sys.argv:
    catch_lost_memory()
    catch_lost_memory()  # twice is once
os.ftruncate(fd, 0)
if "outside" in sys.argv:
    memory[0]
copy()
assert ended == {"whole": 0, "lost": 2}, ended
os.ftruncate(fd, SIZE)
copy()
assert ended == {"whole": 2, "lost": 2}, ended

ends = threading.Event()

def change():
    while not ends.is_set():
        os.ftruncate(fd, 0)
        os.ftruncate(fd, SIZE)

changing = threading.Thread(target=change)
changing.start()
deadline = time.monotonic() + 0.5
while time.monotonic() < deadline:
    copy()
ends.set()
changing.join()
copy()
print("lives", ended)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_copy_whose_memory_goes_fails_and_the_next_works() -> None:
    ended = run("catch")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("lives"), ended.stdout


def test_nobody_catches_it_unasked() -> None:
    assert run().returncode == -signal.SIGBUS


def test_what_is_no_copy_ends_as_it_did_before() -> None:
    assert run("catch", "outside").returncode == -signal.SIGBUS
