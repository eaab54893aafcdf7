"""An adapter's look at the switches of its node: by itself, and as its gateway tells it.

Owns: when to look, and what both come to. Must not know: sockets, what a switch does. Runs on the link thread: a look
lists one directory, which costs some microseconds.

The adapter looks for itself because a switch is needed most when the gateway hangs or is dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from adapter.config import AdapterConfig
from adapter.log import EngineLog
from gateway import switches
from gateway.wire.codes import SwitchMode, SwitchScope, strictest
from gateway.wire.messages import SwitchInfo

Read = Callable[[str | os.PathLike[str]], switches.Reading]


class SwitchWatch:
    """What operators let one adapter do.

    Args:
        run_dir: the gateway's shared directory.
        model: the adapter's model.
        config: its settings.
        log: told once of each entry that looks like a switch and is none.
        read: lists the directory; a seam for tests.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        model: str,
        config: AdapterConfig,
        log: EngineLog,
        read: Read = switches.read,
    ) -> None:
        #: How long granted work may run on once it is switched off.
        self.drain_seconds = config.drain_deadline_seconds
        self._run_dir = run_dir
        self._keys = switches.keys_of(model, config.resolved_engine_name())
        self._heartbeat_seconds = config.heartbeat_seconds
        self._log = log
        self._read = read
        self._look_at = 0.0  # monotonic
        #: Of those that the adapter obeys. Replaced as a whole: another thread may read them.
        self._seen: tuple[switches.Marker, ...] = ()
        self._told = SwitchMode.ON
        self._complaints: frozenset[str] = frozenset()

    def told(self, mode: SwitchMode) -> None:
        """A heartbeat's answer says so. It counts until the next one."""
        self._told = mode

    def look(self, now: float) -> SwitchMode:
        """The mode in force: the stricter of what stands in the directory and what the gateway told last."""
        if now >= self._look_at:
            self._look_at = now + self._heartbeat_seconds
            self._look()
        return strictest((self._told, *(marker.mode for marker in self._seen)))

    def infos(self) -> tuple[SwitchInfo, ...]:
        """Every switch that the adapter obeys. Any thread.

        What the gateway told beyond the markers is its setting for the node, which has none.
        """
        seen, told = self._seen, self._told
        found = tuple(
            SwitchInfo(scope=marker.scope, name=marker.name, mode=marker.mode, since_at=marker.since_at)
            for marker in seen
        )
        marked = strictest(info.mode for info in found)
        if strictest((marked, told)) is marked:
            return found
        return SwitchInfo(scope=SwitchScope.NODE, name=switches.NODE, mode=told, since_at=0.0), *found

    def _look(self) -> None:
        try:
            reading = self._read(self._run_dir)
        except OSError as error:  # what was seen last stays: a switch must not end because nobody can look
            complaints = frozenset({f"{os.fspath(self._run_dir)!r} cannot be looked at for switches: {error.strerror}"})
        else:
            self._seen = tuple(marker for marker in reading.markers if (marker.scope, marker.name) in self._keys)
            complaints = frozenset(reading.complaints)
        for complaint in sorted(complaints - self._complaints):
            self._log.warning("switch_ignored", reason=complaint)
        self._complaints = complaints
