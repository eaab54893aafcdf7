"""Who may open what, in a sentence for whoever is refused.

Owns: that sentence: path, mode and owners on one side, this process's ids on the other. Must not know: what a path is
for. Any thread.
"""

import os
import stat
from pathlib import Path


def whoami() -> str:
    """The ids that decide what this process may open."""
    groups = " ".join(str(group) for group in os.getgroups())
    return f"uid {os.geteuid()}, gid {os.getegid()}, groups {groups or 'none'}"


def describe(path: Path) -> str:
    """Mode and owners of ``path``, or of the directory above it that hides it from this process."""
    try:
        status = path.stat()
    except PermissionError:
        return f"{path} is hidden by {describe(path.parent)}"
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    return f"{path} (mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}, gid {status.st_gid})"


def explain(path: Path) -> str:
    """Both sides of a refusal."""
    return f"{describe(path)}; this process has {whoami()}"


def may_use(path: Path, mode: int) -> bool:
    """Whether this process's effective ids allow ``mode`` (``os.R_OK`` and so on)."""
    return os.access(path, mode, effective_ids=True)
