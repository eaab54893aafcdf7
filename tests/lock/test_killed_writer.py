"""What a free lock proves of memory: a process that was killed in the middle of a copy writes nothing any more."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

from gateway.lock import LockObserver, party_offset
from tests.support.poll import until

OFFSET = party_offset(bytes(range(16)))
SIZE = 2 << 20
ROUNDS = 3

# Takes the lock, maps the file and overwrites all of it for ever on two threads, each time with another byte: wherever
# it is killed, it is in the middle of a copy. It keeps nothing that stands for the lock: the lock is the process's.
WRITER = """
import ctypes, mmap, sys, threading
from gateway.lock import DeathLock
path, offset, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DeathLock.take(path, offset)
file = open(path, "r+b")
mapping = mmap.mmap(file.fileno(), size)
address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

def write(start, end):
    byte = 0
    while True:
        byte = byte % 255 + 1
        ctypes.memset(start, byte, end - start)

threading.Thread(target=write, args=(address, address + size // 2)).start()
threading.Thread(target=write, args=(address + size // 2, address + size)).start()
print("begun", flush=True)
"""


def test_nothing_is_written_once_the_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_bytes(bytes(SIZE))
    observer = LockObserver.open(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ) as memory:
        for _ in range(ROUNDS):
            before = memory[:]
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), str(OFFSET), str(SIZE)], stdout=subprocess.PIPE
            )
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"begun\n"
                until(lambda before=before: memory[:] != before, what="it writes")
                assert observer.is_held(OFFSET)
                os.kill(writer.pid, 9)
                until(lambda: not observer.is_held(OFFSET), what="the lock is free")
                when_free = memory[:]
            finally:
                writer.kill()
                writer.communicate(timeout=10)
            assert memory[:] == when_free, "written by a process that was taken for dead"
    observer.close()
