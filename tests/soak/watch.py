"""One reading of everything that could grow: processes, directories, tables on both sides. Only looks."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.metrics.process import read_process
from tests.chaos.fleet import EngineSeat
from tests.support.daemon import Daemon

MIB = 1 << 20
#: Of the gateway's gauges, those that count entries of a table.
_GAUGES = (
    *("table_entries", "leases", "reservations", "parties"),
    *("copying_operations", "mapped_workers", "exported_events", "imported_events", "switch_mode"),
)
#: Where other programs of the machine leave files too; those of gateways are counted in their own directory.
_SHM = Path("/dev/shm")  # noqa: S108 - that is where they are
_GATEWAYS = "kvgate"


class Watch:
    """Reads one gateway, and the engines that stay."""

    def __init__(self, daemon: Daemon, seats: Iterable[EngineSeat]) -> None:
        self._daemon = daemon
        self._seats = tuple(seats)
        (self._admin,) = (pid for pid in daemon.processes() if "gateway.admin" in _command(pid))

    def read(self) -> dict[str, float]:
        """Every series, by name."""
        readings: dict[str, float] = {}
        processes = {"gateway": self._daemon.pid, "admin": self._admin, **{seat.name: seat.pid for seat in self._seats}}
        for name, pid in processes.items():
            readings |= {f"{name} {what}": level for what, level in _of_process(pid)}
        ours = (self._daemon.run_dir, self._daemon.admin_dir)
        readings["files run_dir"] = sum(1 for directory in ours for _ in directory.rglob("*"))
        readings["files /dev/shm"] = sum(not entry.name.startswith(_GATEWAYS) for entry in _SHM.iterdir())
        readings |= {f"gateway {table}": entries for table, entries in self.tables()}
        for seat in self._seats:
            readings |= {f"{seat.name} {table}": entries for table, entries in seat.latest.tables.items()}
        return readings

    def tables(self) -> Iterator[tuple[str, float]]:
        """The gateway's tables, from one snapshot."""
        snapshot = self._daemon.snapshot()
        switches = 0.0
        for sample in snapshot.gauges:
            if sample.name == "table_entries":
                yield sample.labels[0], sample.value
            elif sample.name == "switch_mode":
                switches += sample.value
            elif sample.name in _GAUGES:
                yield " ".join((*sample.labels, sample.name)), sample.value
        yield "switches", switches
        yield "slots in quarantine", snapshot.slots.quarantined
        yield "slots being written", snapshot.slots.writing


def _of_process(pid: int) -> Iterator[tuple[str, float]]:
    stats = read_process(pid)
    assert stats is not None, f"process {pid} is gone"
    yield "resident", stats.resident_bytes / MIB
    yield "descriptors", stats.open_fds
    yield "threads", stats.threads
    yield "mappings", (Path("/proc") / str(pid) / "maps").read_bytes().count(b"\n")


def _command(pid: int) -> str:
    return (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace")
