"""Options of the commands that look at a gateway's directories rather than ask it.

Owns: those options, and the settings they come to. Must not know: what a command does. Runs on the main thread.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gateway.config import ConfigError, GatewayConfig, load
from gateway.doctor.gateway_side import directories


@dataclass(frozen=True)
class Located:
    """Where a gateway's directories are.

    Attributes:
        settings: as a start in this environment would have them; only the directories, where it would refuse.
        complaint: why it would refuse; empty: it would not.
    """

    settings: GatewayConfig
    complaint: str

    @property
    def run_dir(self) -> Path:
        """The directory shared with engines."""
        return directories(self.settings)[0]

    @property
    def admin_dir(self) -> Path:
        """The operators' directory."""
        return directories(self.settings)[1]


def located(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a gateway's directories; it is called with ``place``."""

    @functools.wraps(command)
    def wrapped(*, run_dir: str | None, admin_dir: str | None, config: str | None, **rest: Any) -> None:
        command(_locate(run_dir, admin_dir, config), **rest)

    for option in (
        click.option("--config", metavar="FILE", envvar="KVGATE_CONFIG", help="The gateway's TOML file of settings."),
        click.option("--admin-dir", help="Directory of its admin socket, if not RUN_DIR.admin."),
        click.option("--run-dir", help="Directory of the gateway (or KVGATE_RUN_DIR)."),
    ):
        wrapped = option(wrapped)
    return wrapped


def _locate(run_dir: str | None, admin_dir: str | None, config: str | None) -> Located:
    complaint = ""
    try:
        settings = load({"run_dir": run_dir, "admin_dir": admin_dir}, os.environ, config)
    except ConfigError as error:
        complaint = str(error)
        settings = GatewayConfig(
            run_dir=run_dir or os.environ.get("KVGATE_RUN_DIR", ""),
            admin_dir=admin_dir or os.environ.get("KVGATE_ADMIN_DIR", ""),
        )
    if not settings.run_dir:
        raise click.UsageError("which gateway? Give --run-dir or KVGATE_RUN_DIR.")
    return Located(settings, complaint)
