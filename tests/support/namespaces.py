"""Mounts of a test's own, and processes that see them: a small file system, another /dev/shm, other limits."""

import functools
import os
import subprocess
from pathlib import Path
from typing import Self

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


class Mounts:
    """A mount namespace. Whatever runs with ``prefix`` before its words is inside; nobody else sees its mounts.

    Args:
        commands: shell lines run in it at first, ``mount …`` for instance.
    """

    def __init__(self, *commands: str) -> None:
        script = "; ".join(("set -e", *commands, "echo ready", "exec cat"))
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        assert said == "ready\n", said
        # Entering leads to the root directory: go back to where the code is.
        self.prefix = (
            *("nsenter", "--mount", "--target", str(self._holder.pid)),
            *("sh", "-c", 'cd "$0" && exec "$@"', str(REPOSITORY)),
        )

    def seen(self, path: Path) -> Path:
        """The way to a path inside, for who is outside."""
        return Path("/proc", str(self._holder.pid), "root", *path.parts[1:])

    def close(self) -> None:
        """The namespace ends with its last process."""
        self._holder.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Words before a command that runs with other clocks: CLOCK_MONOTONIC is a day ahead.
SHIFTED_CLOCKS = ("unshare", "--time", "--fork", "--monotonic", "86400")


@functools.cache
def _works(*command: str) -> bool:
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(
    not _works("unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"),
    reason="mounting in a namespace of one's own is not permitted here",
)
needs_shifted_clocks = pytest.mark.skipif(
    not _works(*SHIFTED_CLOCKS, "true"), reason="time namespaces are not permitted here"
)
