"""The daemon's switches: the markers in the shared directory, the setting's default, and who changed what.

Owns: which modes are in force, and looking at the markers again and again, since others put them there too. Must not
know: what a mode forbids. Runs on the loop's thread.
"""

import logging
from functools import partial
from pathlib import Path

from gateway import switches
from gateway.audit import AuditLog
from gateway.core.core import Core
from gateway.core.types import Refusal
from gateway.switches import NODE, Key
from gateway.wire.codes import ErrorCode, SwitchMode, SwitchScope
from gateway.wire.messages import Sample, SwitchInfo

_log = logging.getLogger("kvgate.switches")

MAX_SWITCHES = 256
#: Names shown in labels of one scope; what is beyond counts as ``other``.
MAX_LABELS = 32
OTHER = "other"


class Switchboard:
    """All switches of this node."""

    def __init__(self, run_dir: Path, default: SwitchMode, core: Core, audit: AuditLog) -> None:
        """Look for the first time.

        Args:
            run_dir: where markers are.
            default: the node's, where nobody has put a marker for it.
            core: obeys.
            audit: is told of markers that others put or took away.
        """
        self._run_dir = run_dir
        self._default = default
        self._core = core
        self._audit = audit
        self._complaints: frozenset[str] = frozenset()
        self._modes: dict[Key, SwitchMode] = {}
        self._since: dict[Key, float] = {}
        self._look()

    def refresh(self, _now: float) -> str:
        """Look at the markers; returns why all is not well, empty when it is."""
        before = self._modes
        reason = self._look()
        for key in sorted(before.keys() | self._modes.keys()):
            was, now = (modes.get(key, SwitchMode.ON) for modes in (before, self._modes))
            if was is not now:
                scope, name = key
                facts = {"scope": scope, "name": name}
                self._audit.record("switch", who="a marker", peer="", before=was, after=now, result="ok", **facts)
        return reason

    def set(self, scope: SwitchScope, name: str, mode: SwitchMode | None) -> None:
        """Set a switch for good; None, or what holds without one, takes its marker away.

        Raises:
            Refusal: INVALID, LIMIT, or INTERNAL when the directory may not be written.
        """
        default = self._default if scope is SwitchScope.NODE else SwitchMode.ON
        if (scope, name) not in self._modes and len(self._modes) >= MAX_SWITCHES:
            raise Refusal(ErrorCode.LIMIT, f"{len(self._modes)} switches are set, at most {MAX_SWITCHES} can be")
        try:
            switches.put(self._run_dir, scope, name, None if mode is default else mode)
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID, str(error)) from None
        except OSError as error:
            raise Refusal(ErrorCode.INTERNAL, f"cannot write {self._run_dir}: {error.strerror}") from None
        self._look()

    def mode_of(self, scope: SwitchScope, name: str) -> SwitchMode:
        """The mode of one switch."""
        return self._modes.get((scope, name), SwitchMode.ON)

    def infos(self) -> tuple[SwitchInfo, ...]:
        """Every switch that is set."""
        return tuple(
            SwitchInfo(scope=scope, name=name, mode=mode, since_at=self._since.get((scope, name), 0.0))
            for (scope, name), mode in self._modes.items()
        )

    def gauges(self) -> list[Sample]:
        """Samples of ``switch_mode``: 1 for each, and how many there are beyond the bound of labels."""
        samples: dict[tuple[str, str, str], int] = {}
        shown = dict.fromkeys(SwitchScope, 0)
        for (scope, name), mode in self._modes.items():
            shown[scope] += 1
            labels = (scope, name if shown[scope] <= MAX_LABELS else OTHER, mode)
            samples[labels] = samples.get(labels, 0) + 1
        return [Sample("switch_mode", labels, count) for labels, count in samples.items()]

    def _look(self) -> str:
        try:
            reading = switches.read(self._run_dir)
        except OSError as error:  # what was in force stays
            return f"{self._run_dir} cannot be looked at for switches: {error.strerror}"
        for complaint in sorted(frozenset(reading.complaints) - self._complaints):
            _log.warning("switch_ignored", extra={"facts": {"reason": complaint}})
        self._complaints = frozenset(reading.complaints)
        self._modes = reading.modes()
        self._since = {(marker.scope, marker.name): marker.since_at for marker in reading.markers}
        if self._default is not SwitchMode.ON:
            self._modes.setdefault((SwitchScope.NODE, NODE), self._default)
        self._core.obey(partial(switches.in_force, self._modes))
        return ""
