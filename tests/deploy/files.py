"""The deployment files as they are committed, and what their numbers must come to."""

import re
from pathlib import Path
from typing import Any

import click
import yaml

from gateway import config
from gateway.cli.main import cli
from gateway.config import GatewayConfig

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = ROOT / "compose.yaml"
DOCKERFILE = ROOT / "Dockerfile"

MIB = 1 << 20
#: Both processes of a gateway (200 MB at most), and a command that somebody runs beside them.
PROCESSES_BYTES = 320 * MIB
BYTES_A_CHUNK = 512

Json = Any


def documents(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def document(name: str) -> Json:
    """The one document of a Kubernetes file."""
    (found,) = documents(ROOT / "deploy" / "kubernetes" / name)
    return found


def image_environ() -> dict[str, str]:
    """KVGATE_ variables that the gateway's image sets: of the last stage."""
    last = DOCKERFILE.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    return dict(re.findall(r"(KVGATE_\w+)=(\S+)", last))


def parsed(words: list[str]) -> click.Context:
    """A command of kvgate as click reads it, without running it.

    Raises:
        click.UsageError: there is no such command, option or value.
    """
    command = cli.get_command(click.Context(cli), words[0])
    if command is None:
        raise click.UsageError(f"there is no kvgate {words[0]}")
    return command.make_context(words[0], list(words[1:]), parent=click.Context(cli))


def settings(words: list[str], environ: dict[str, str] | None = None) -> GatewayConfig:
    """The settings of ``kvgate serve`` with these words, in the image's environment and this one.

    Raises:
        click.UsageError: see ``parsed``.
        ConfigError: a setting cannot be used, or a variable is none.
    """
    flags = {name: value for name, value in parsed(words).params.items() if name in config.SETTINGS}
    loaded = config.load(flags, {**image_environ(), **(environ or {})})
    assert loaded.unknown_variables == ()
    return loaded


def needed_bytes(of: GatewayConfig) -> int:
    """Memory that a gateway with these settings is charged for at most: the formula of docs/deploy.md."""
    max_chunks = of.pool_size // of.min_chunk_bytes
    return of.pool_size + of.pool_size // 100 + BYTES_A_CHUNK * max_chunks + PROCESSES_BYTES


def size_of(text: str | int) -> int:
    """Bytes of a size as compose (1400m) or Kubernetes (4608Mi) writes it."""
    number, unit = re.fullmatch(r"(\d+)([a-zA-Z]*)", str(text)).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[unit.lower().removesuffix("i")]


def seconds_of(text: str) -> float:
    """Seconds of a time like 30s or 1m."""
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]
