"""How much memory a daemon's processes have, the pool and what is beside it.

Owns: reading it from /proc. Must not know: whose it is.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Bytes by the kernel: ``resident``, RSS; ``proportional``, PSS; ``beside_pool``, PSS without the pool."""

    resident: int
    proportional: int
    beside_pool: int


def of_daemon(pid: int, pool: Path | None) -> Memory:
    """Of a process and all that descend from it."""
    resident = proportional = beside = 0
    for each in _family(pid):
        is_pool = False
        for line in (Path("/proc") / str(each) / "smaps").read_text().splitlines():
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):  # a mapping begins
                is_pool = pool is not None and line.endswith(str(pool))
            elif name == "Rss:":
                resident += 1024 * int(rest.split()[0])
            elif name == "Pss:":
                proportional += 1024 * int(rest.split()[0])
                beside += 0 if is_pool else 1024 * int(rest.split()[0])
    return Memory(resident, proportional, beside)


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            found += _family(int(child))
    return found
