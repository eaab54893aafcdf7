"""The admin process: started by exec, started again when it dies, ended with the core.

Owns: one child process and the pace of its restarts. Must not know: what it serves. Runs on the loop's thread; nothing
here waits but ``stop``.

The child gets its settings by environment, the token included: neither ever stands in an argument list, which every
user of the machine can read.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping

_log = logging.getLogger("kvgate.admin_child")

_FIRST_BACK_OFF_SECONDS = 0.5
_LONGEST_BACK_OFF_SECONDS = 30.0
#: A child that lived so long had begun well: the next restart is prompt again.
_LIVED_WELL_SECONDS = 60.0
_STOP_SECONDS = 5.0

#: Read by the child to know that it is one.
CORE_PID_VARIABLE = "KVGATE_CORE_PID"


class AdminChild:
    """One child at a time. ``tick`` is called often and restarts it when it is due."""

    def __init__(self, environ: Mapping[str, str], run_dir: os.PathLike[str]) -> None:
        """Make it; nothing is started yet.

        Args:
            environ: settings and token.
            run_dir: given as an argument too, so that a process list tells daemons apart.
        """
        self._command = [sys.executable, "-m", "gateway.admin", "--run-dir", os.fspath(run_dir)]
        self._environ = {**environ, CORE_PID_VARIABLE: str(os.getpid())}
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
        self._restart_at = 0.0

    def start(self, now: float) -> None:
        """Start the child.

        Its output joins our stderr: stdout is for the ready line only. It has a process group of its own, so that
        Ctrl-C in a terminal reaches the core alone, which drains while the admin API still answers.
        """
        self._started_at = now
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0
        )

    @property
    def exit_code(self) -> int | None:
        """How the last child ended; None while it lives, or before the first start."""
        return None if self._process is None else self._process.poll()

    def tick(self, now: float) -> str:
        """Start a dead child again when it is due; returns why all is not well, empty when the child lives."""
        if self._process is None or self._process.poll() is None:
            return ""
        code = self._process.returncode
        if not self._restart_at:
            if now - self._started_at > _LIVED_WELL_SECONDS:
                self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
            self._restart_at = now + self._back_off_seconds
            facts = {"exit_code": code, "restart_in_seconds": self._back_off_seconds}
            _log.error("admin_died", extra={"facts": facts})
            self._back_off_seconds = min(2 * self._back_off_seconds, _LONGEST_BACK_OFF_SECONDS)
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self.start(now)
            return ""
        return f"the admin process exited with {code} and is started again soon"

    def stop(self) -> None:
        """End the child: ask, wait a moment, then insist."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
