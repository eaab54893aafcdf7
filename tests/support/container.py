"""The surroundings that a container engine lays for a process, by hand: there is no container engine where we test.

A mount namespace with volumes of its own and a tree that is read-only everywhere else; in it processes of another user,
with given groups, without capabilities, and never with more than they began with.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.daemon import REPOSITORY
from tests.support.namespaces import Mounts

#: What every user must be able to read, as it can in an image: the code and the interpreter.
TREES = tuple(dict.fromkeys((REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))))


class Node:
    """One node: what its containers share is below ``base``, at the paths that they have in a container.

    Args:
        base: an empty directory.
        volumes: path in the containers to the options of the tmpfs there; empty: a plain directory of root's.
    """

    def __init__(self, base: Path, volumes: Mapping[str, str]) -> None:
        self.base = base
        base.chmod(0o755)
        places = {self.at(path): options for path, options in volumes.items()}
        for place in places:
            place.mkdir(parents=True, mode=0o755)
        mount = [
            f"mount -t tmpfs -o '{options}' none {place}" if options else f"mount --bind {place} {place}"
            for place, options in places.items()
        ]
        self._mounts = Mounts("umask 022", *_readable_by_all(base), *mount, _read_only_but(places))

    def at(self, path: str) -> Path:
        """Where a container's path is on this node, for who is inside."""
        return self.base / path.removeprefix("/")

    def seen(self, path: str) -> Path:
        """The same for who is outside."""
        return self._mounts.seen(self.at(path))

    def container(self, user: str, groups: Sequence[str] = (), capabilities: Sequence[str] = ()) -> tuple[str, ...]:
        """Words before a command that runs in a container.

        Args:
            user: UID:GID.
            groups: others that it has.
            capabilities: that are left to it, of root's; without ``CAP_``.
        """
        uid, gid = user.split(":")
        return (
            *self._mounts.prefix,
            *("setpriv", "--reuid", uid, "--regid", gid),
            *(("--groups", ",".join(groups)) if groups else ("--clear-groups",)),
            *("--bounding-set", ",".join(("-all", *(f"+{name.lower()}" for name in capabilities)))),
            *("--inh-caps=-all", "--no-new-privs"),
        )

    def run(
        self, container: tuple[str, ...], *command: str | Path, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container to its end."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        return subprocess.run(
            [*container, *command],
            env={**inherited, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def close(self) -> None:
        self._mounts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _readable_by_all(base: Path) -> list[str]:
    """Lines that put a way to each tree where one of the directories above it is closed to other users."""
    closed = {
        tree: next((parent for parent in reversed(tree.parents) if not parent.stat().st_mode & 0o001), None)
        for tree in TREES
    }
    trees = {tree: (top, base / f"tree{i}") for i, (tree, top) in enumerate(closed.items()) if top is not None}
    return [
        *(f"mkdir {aside}; mount --bind {tree} {aside}" for tree, (_, aside) in trees.items()),
        *(f"mount -t tmpfs -o mode=0755 none {top}" for top in {top for top, _ in trees.values()}),
        *(f"mkdir -p {tree}; mount --bind {aside} {tree}" for tree, (_, aside) in trees.items()),
    ]


def _read_only_but(places: Mapping[Path, str]) -> str:
    """One line that makes every mount read-only, but for these and for the kernel's own."""
    kept = "|".join((*map(str, places), "/proc*", "/sys*"))
    return (
        f"for point in $(cut -d' ' -f5 /proc/self/mountinfo); do case $point in {kept}) ;; "
        "*) mount -o remount,bind,ro $point ;; esac; done"
    )
