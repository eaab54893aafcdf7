"""The daemon's chores: time passes in the tables, the dead are found, the pool file is looked at.

Owns: what each chore does and when it says that all is not well. Must not know: how often each runs, messages, sockets.
Runs on the loop's thread.

Each returns why all is not well; empty when it is.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.core.core import Core
from gateway.device.host_event import sweep
from gateway.engines import EngineStats
from gateway.handles.desk import Desk
from gateway.lock import LockObserver, party_offset
from gateway.pool.file import PoolFile
from gateway.pool.format import HEADER_PAGES_BYTES, PoolFormatError, decode_pages
from gateway.pool_writer import PoolWriter

_log = logging.getLogger("kvgate.chores")

#: How much of the pool may wait for its owners' proven death before an operator should look.
MAX_QUARANTINED_SHARE = 0.25


@dataclass(frozen=True)
class Chores:
    """What the chores work on. ``locks`` watches the very file that ``pool`` is."""

    core: Core
    engines: EngineStats
    locks: LockObserver
    pool: PoolFile
    writer: PoolWriter
    desk: Desk
    run_dir: Path

    def pass_time(self, now: float) -> str:
        """Let leases and reservations run out, and drains move on."""
        self.core.tick(now, time.time())
        self.writer.apply(self.core.take_effects())
        self.engines.tick(now)
        return ""

    def move_copies(self, now: float) -> str:
        """Let time pass for the copies that the gateway does for engines."""
        self.desk.tick(now)
        return ""

    def sweep_events(self, _now: float) -> str:
        """Take away the events of producers that are dead."""
        sweep(self.run_dir)
        return ""

    def find_dead(self, now: float) -> str:
        """Ask the kernel for every party whose death matters; a free lock is a proven death.

        It is a proof because each lock was seen held before: by REGISTER, or, for the owner of a slot that was being
        written when an earlier daemon ended, by the REGISTER that came before its grant, on this same file.
        """
        for party in self.core.owners():
            if not self.locks.is_held(party_offset(party)):
                self.desk.leave((party,), now)
                if self.desk.is_busy(party):
                    continue  # a copy into one of its slots still runs: it is buried when that has ended
                facts = {"engine": self.core.engine_of(party), "party": party.hex()}
                _log.info("party_died", extra={"facts": facts})
                self.core.party_died(party, now)
                self.engines.forget(party, now)
        self.writer.apply(self.core.take_effects())
        return ""

    def check_pool(self, _now: float) -> str:
        """Whether engines that open the pool's path still find the file this daemon writes to."""
        path = self.pool.path
        try:
            status = path.lstat()
            if (status.st_dev, status.st_ino) != self.locks.inode:  # asked first: to open a pipe would be to wait
                return f"another file has taken the place of the pool file {path}"
            with path.open("rb") as file:
                page = decode_pages(file.read(HEADER_PAGES_BYTES))
        except OSError as error:
            return f"the pool file {path} cannot be opened any more: {error.strerror}"
        except PoolFormatError as error:
            return f"the pool file {path} is damaged: {error}"
        if page.pool_id != self.pool.pool_id:
            return f"another file has taken the place of the pool file {path}"
        return ""

    def check_quarantine(self, _now: float) -> str:
        """Whether enough of the pool can be used."""
        slots = self.core.slot_counts()
        share = slots["quarantined_bytes"] / slots["pool_bytes"]
        if share <= MAX_QUARANTINED_SHARE:
            return ""
        return f"{share:.0%} of the pool waits for the death of engines that were cut off: end those that hang"

    def discard_old_pools(self, _now: float) -> str:
        """Free pool files that were set aside, once no engine uses them any more."""
        self.pool.discard_set_aside()
        return ""
