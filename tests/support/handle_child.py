"""Another process that opens what this one hands out, or hands out events of its own.

Run as a program it obeys one line at a time and answers each with one, ``ok VALUE`` or ``error MESSAGE``.
"""

import subprocess
import sys
from array import array
from pathlib import Path
from typing import Self

import numpy as np

from gateway.device.base import DeviceError
from gateway.device.copy import Region
from gateway.device.devices import open_device
from gateway.device.passing import SOCKET, Inlet

REPOSITORY = Path(__file__).resolve().parents[2]


class HandleChild:
    """The other process, as this one talks to it."""

    def __init__(self, kind: str, run_dir: Path) -> None:
        command = [sys.executable, "-m", "tests.support.handle_child", kind, str(run_dir)]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ok ready"

    def ask(self, *words: object) -> str:
        """What it answers.

        Raises:
            DeviceError: it could not.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        kind, _, value = self._line().partition(" ")
        if kind != "ok":
            raise DeviceError(value)
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child is gone"
        return line.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class _Child:
    """The other process, as it is. One region of memory, one event opened, one produced."""

    def __init__(self, kind: str, run_dir: str) -> None:
        self.inlet = Inlet(Path(run_dir) / SOCKET)
        self.device = open_device(kind, run_dir, self.inlet)
        self.memory = self.copier = self.opened = self.produced = None
        self.row_bytes = 0

    def open_memory(self, handle: str, nbytes: str, num_blocks: str, row_bytes: str) -> None:
        self.memory = self.device.open_memory(bytes.fromhex(handle), int(nbytes))
        self.row_bytes = int(row_bytes)
        region = Region(self.memory.address, self.row_bytes, self.row_bytes)
        self.copier = self.device.copier([region], int(num_blocks))

    def close_memory(self) -> None:
        self.copier = None
        self.memory.close()

    def gather(self, *block_ids: str) -> str:
        slot = np.zeros(len(block_ids) * self.row_bytes, np.uint8)
        self.copier.gather(array("q", map(int, block_ids)), slot.ctypes.data)
        return slot.tobytes().hex()

    def scatter(self, data: str, *block_ids: str) -> None:
        slot = np.frombuffer(bytes.fromhex(data), np.uint8)
        self.copier.scatter(array("q", map(int, block_ids)), slot.ctypes.data)

    def open_event(self, handle: str) -> None:
        self.opened = self.device.open_event(bytes.fromhex(handle))

    def query(self) -> bool:
        return self.opened.query()

    def close_event(self) -> None:
        self.opened = None

    def produce(self) -> str:
        self.produced = self.device.record_event()
        return self.produced.ipc_handle().hex()

    def drop(self) -> None:
        self.produced = None

    def num_waiting(self) -> int:
        self.inlet.receive()
        return len(self.inlet)


def main(kind: str, run_dir: str) -> None:
    child = _Child(kind, run_dir)
    print("ok ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            value = getattr(child, verb)(*words)
            print("ok", "" if value is None else value, flush=True)
        except DeviceError as error:
            print("error", str(error).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
