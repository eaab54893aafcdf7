"""Switches: what operators let a node, a model or an engine do, as empty files in the directory shared with engines.

Owns: the files' names, reading them, putting and taking them away. Must not know: who obeys, who asked, messages. Any
thread and any process: the daemon, every engine and the command line read the same files, so a switch works whatever
becomes of any of them.

A marker's name says everything: ``switch.<scope>.<mode>.<name>``, the last part percent-encoded. It holds no bytes,
and no link is followed. Where there are two for one name, the stricter counts: a change puts the new one before it
takes the old ones away, so that no moment is laxer than both.
"""

import heapq
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from gateway.wire.codes import SwitchMode, SwitchScope, strictest

PREFIX = "switch."
#: The node's only name.
NODE = "all"
_NODE_PREFIX = f"{PREFIX}{SwitchScope.NODE}."
#: The node, its model's name and its engine's: whoever has one of them is meant.
Key = tuple[SwitchScope, str]

#: Looked at in one reading, so that a flood of markers holds up neither the daemon nor an engine.
MAX_MARKERS = 1024

_MAX_NAME_BYTES = 255  # of a file, on every file system
_ENGINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_MAX_MODEL = 256


@dataclass(frozen=True)
class Marker:
    """One marker found. ``since_at``: when it was put there, Unix seconds."""

    scope: SwitchScope
    name: str
    mode: SwitchMode
    since_at: float


@dataclass(frozen=True)
class Reading:
    """What stands in the directory. ``complaints``: a sentence for each entry that looks like a marker and is none."""

    markers: tuple[Marker, ...] = ()
    complaints: tuple[str, ...] = ()

    def modes(self) -> dict[Key, SwitchMode]:
        """The mode of each name."""
        found: dict[Key, list[SwitchMode]] = {}
        for marker in self.markers:
            found.setdefault((marker.scope, marker.name), []).append(marker.mode)
        return {key: strictest(modes) for key, modes in found.items()}


def keys_of(model: str, engine: str) -> tuple[Key, ...]:
    """The switches that an engine of this model obeys: its node's, its model's and its own."""
    return (SwitchScope.NODE, NODE), (SwitchScope.MODEL, model), (SwitchScope.ENGINE, engine)


def in_force(modes: Mapping[Key, SwitchMode], model: str, engine: str) -> SwitchMode:
    """What an engine of this model may do: the strictest of its switches."""
    return strictest(modes[key] for key in keys_of(model, engine) if key in modes)


def read(run_dir: str | os.PathLike[str]) -> Reading:
    """Every marker in the directory; none where there is no such directory.

    Raises:
        OSError: it may not be listed.
    """
    markers: list[Marker] = []
    complaints: list[str] = []
    try:
        entries = os.scandir(run_dir)
    except FileNotFoundError:
        return Reading()
    with entries:
        found = [entry for entry in entries if entry.name.startswith(PREFIX)]
    if len(found) > MAX_MARKERS:
        complaints.append(f"over {MAX_MARKERS} entries of {str(run_dir)!r} look like switches: the others are ignored")
        # Whoever looks sees the same ones, the node's first.
        found = heapq.nsmallest(MAX_MARKERS, found, lambda one: (not one.name.startswith(_NODE_PREFIX), one.name))
    for entry in found:
        try:
            markers.append(_marker(entry))
        except FileNotFoundError:
            continue  # taken away at this moment
        except ValueError as error:
            complaints.append(f"{entry.path!r} is no switch and is ignored: {error}")
    return Reading(tuple(sorted(markers, key=_order)), tuple(sorted(complaints)))


def put(run_dir: str | os.PathLike[str], scope: SwitchScope, name: str, mode: SwitchMode | None) -> None:
    """Set a switch for good; None takes it away. Repeating it changes nothing.

    Raises:
        ValueError: no such name can be.
        OSError: the directory may not be written.
    """
    check_name(scope, name)
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wanted = None if mode is None else _file_name(scope, name, mode)
        if wanted is not None:
            _touch(directory, wanted)
        for other in SwitchMode:
            marker = _file_name(scope, name, other)
            if marker != wanted:
                _unlink(directory, marker)
        os.fsync(directory)
    finally:
        os.close(directory)


def check_name(scope: SwitchScope, name: str) -> None:
    """See that something can have this name.

    Raises:
        ValueError: nothing can; the message says what was expected.
    """
    if scope is SwitchScope.NODE and name != NODE:
        raise ValueError(f"the node's switch is called {NODE!r}, not {name!r}")
    if scope is SwitchScope.ENGINE and not _ENGINE_NAME.fullmatch(name):
        raise ValueError(f"engine is {name!r}, expected 1 to 63 of A-Z a-z 0-9 . _ -")
    if scope is SwitchScope.MODEL:
        if not 0 < len(name) <= _MAX_MODEL:
            raise ValueError(f"model has {len(name)} characters, expected 1 to {_MAX_MODEL}")
        if "\0" in name:
            raise ValueError("model has a NUL, with which no model can be registered")
        size = len(_file_name(scope, name, SwitchMode.NO_STORE))
        if size > _MAX_NAME_BYTES:
            raise ValueError(
                f"model {name[:40]!r}… takes a file name of {size} bytes, expected {_MAX_NAME_BYTES} at most"
            )


def _file_name(scope: SwitchScope, name: str, mode: SwitchMode) -> str:
    return f"{PREFIX}{scope}.{mode}.{quote(name, safe='')}"


def _marker(entry: "os.DirEntry[str]") -> Marker:
    """The marker that an entry of the directory is.

    Raises:
        ValueError: it is none; FileNotFoundError: it is gone.
    """
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file, and no link is followed")
    scope, _, rest = entry.name.removeprefix(PREFIX).partition(".")
    mode, _, encoded = rest.partition(".")
    found = SwitchScope(scope), unquote(encoded, errors="strict"), SwitchMode(mode)
    if _file_name(*found) != entry.name:
        raise ValueError("its last part is not encoded as it should be")
    check_name(*found[:2])
    return Marker(*found, since_at=status.st_mtime)


def _touch(directory: int, name: str) -> None:
    """An empty file of this name: as private, or as open to a group, as the directory is."""
    mode = 0o660 if os.fstat(directory).st_mode & stat.S_IWGRP else 0o600
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=directory)
    except FileExistsError:
        if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return
        os.unlink(name, dir_fd=directory)  # a link or the like in the place of our marker
        _touch(directory, name)
        return
    try:
        os.fchmod(file, mode)
    finally:
        os.close(file)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _order(marker: Marker) -> tuple[int, str, str]:
    return list(SwitchScope).index(marker.scope), marker.name, marker.mode
