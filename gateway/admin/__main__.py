"""``python -m gateway.admin``: the admin process on its own, or as the core's child.

Owns: reading its settings and its exit code. Must not know: anything it serves. Runs on the main thread.

Settings are those of ``gateway.config``: flags here, KVGATE_ variables for the rest, and an optional TOML file. The
core starts it with KVGATE_CORE_PID, its own pid: then this process ends when the core does, and its watchdog may kill
the core.
"""

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.admin.auth import access_for
from gateway.admin.server import AdminSettings, serve
from gateway.config import ConfigError, GatewayConfig, load
from gateway.listener import ListenError
from gateway.log import configure

_log = logging.getLogger("kvgate.admin")

CORE_PID_VARIABLE = "KVGATE_CORE_PID"
_PR_SET_PDEATHSIG = 1  # prctl(2)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until stopped; 0, or 1 when it cannot begin, 2 when a setting is wrong."""
    try:
        settings, config = _read(arguments, environ)
    except ConfigError as error:
        sys.stderr.write(f"kvgate admin: {error}\n")
        return 2
    configure(config.log_level, config.log_format)
    if settings.core_pid is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # best effort; getppid is polled as well
    try:
        asyncio.run(serve(settings))
    except (OSError, ListenError) as error:
        _log.error("start_failed", extra={"facts": {"reason": str(error)}})
        return 1
    return 0


def _read(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[AdminSettings, GatewayConfig]:
    parser = argparse.ArgumentParser(
        prog="kvgate admin",
        description="Serve the admin API of a gateway that runs. All other settings come from KVGATE_ variables.",
    )
    parser.add_argument("--run-dir")
    parser.add_argument("--admin-dir")
    parser.add_argument("--admin", metavar="HOST:PORT")
    parser.add_argument("--probe", metavar="HOST:PORT")
    parser.add_argument("--config", metavar="FILE", default=environ.get("KVGATE_CONFIG"))
    flags = vars(parser.parse_args(arguments))
    config = load(flags, environ, flags.pop("config"))
    if not config.run_dir:
        raise ConfigError("run_dir is not set, expected --run-dir or KVGATE_RUN_DIR: which gateway?")
    core_pid = environ.get(CORE_PID_VARIABLE, "")
    if core_pid and not core_pid.isdigit():
        raise ConfigError(f"{CORE_PID_VARIABLE} is {core_pid!r}, expected a process id")
    settings = AdminSettings(
        run_dir=Path(config.run_dir),
        admin_dir=Path(config.admin_dir or f"{config.run_dir.rstrip('/')}.admin"),
        address=config.admin,
        access=access_for(config, environ),
        probe=config.probe,
        core_pid=int(core_pid) if core_pid else None,
        watchdog_seconds=config.watchdog_seconds,
    )
    return settings, config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
