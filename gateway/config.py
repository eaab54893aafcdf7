"""Settings of the daemon: where they come from, what they may be.

Owns: names, defaults, ranges and units of every setting. Must not know: what a setting does. Runs on the main thread
before anything starts.

A flag beats the environment (``KVGATE_`` and the setting's name in capitals) beats the TOML file beats the default. An
unknown TOML key is an error; an unknown KVGATE_ variable is told once, because a container may carry variables of
other versions.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

PREFIX = "KVGATE_"

#: KVGATE_ variables that are not settings of the daemon: the token, and what engines, examples and tests read.
OTHER_VARIABLES = frozenset(
    PREFIX + name for name in ("ADMIN_TOKEN", "CONFIG", "CORE_PID", "ENGINE_NAME", "TRACE", "VERIFY")
)

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SWITCH_MODES = ("on", "no_store", "no_load", "off")
_LEVELS = ("debug", "info", "warning", "error")

_PAGE = 4096
_LARGEST_AUTOMATIC_SLAB = 256 << 20
_SLABS_AT_LEAST = 16
_PLACES_A_SLAB = 1024


class ConfigError(ValueError):
    """A setting cannot be used; the message names it, its value and what was expected."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one daemon; sizes in bytes, times in seconds. Made by ``load``, which checks them.

    Attributes:
        run_dir: the directory shared with engines; empty: a new one in /dev/shm, removed on a clean stop.
        pool_size: bytes of the pool's data, whole slabs of ``slab_size``.
        slab_size: the pool changes its slot sizes in pieces of this; the largest possible chunk.
        min_chunk_bytes: slot sizes are multiples of this.
        admin: HOST:PORT of the control listener; port 0 takes a free one.
        probe: HOST:PORT of the probe listener; empty: none.
        admin_dir: directory of the admin socket; empty: ``<run_dir>.admin``.
        admin_token_file: file with the bearer token; empty: KVGATE_ADMIN_TOKEN, or no token.
        run_dir_group: a group whose members may be engines: name or number; empty: the daemon's user only.
        max_reserved_fraction: of the pool, what one party may have reserved and quarantined.
        transfer: who copies: ``pool``, the engines; ``handle``, the gateway; ``auto``, as each engine wants it.
        eviction_policy: what goes first when the pool is full: ``lfu``, what is used seldom; ``lru``, what was used
            longest ago.
        watchdog_seconds: the admin process kills a core silent for so long; 0: never.
        pool_on_stop: what becomes of the pool file on a clean stop.
        switch: what the node's engines may do where no operator has set a switch for the node.
        start_lock_wait_seconds: how long to wait for another daemon to leave the directory.
        log_level: of what is written to stderr, audit lines apart.
        log_format: of its lines.
        unknown_variables: KVGATE_ variables nobody knows, for a warning.
    """

    run_dir: str = ""
    pool_size: int = 4 << 30
    slab_size: int = 0
    min_chunk_bytes: int = 0
    admin: str = "127.0.0.1:9480"
    probe: str = ""
    admin_dir: str = ""
    admin_token_file: str = ""
    run_dir_group: str = ""
    lease_seconds: float = 10.0
    reservation_seconds: float = 30.0
    heartbeat_seconds: float = 1.0
    max_reserved_fraction: float = 0.25
    drain_deadline_seconds: float = 30.0
    stop_deadline_seconds: float = 10.0
    transfer: Literal["auto", "pool", "handle"] = "auto"
    eviction_policy: Literal["lfu", "lru"] = "lfu"
    watchdog_seconds: float = 20.0
    pool_on_stop: Literal["keep", "remove"] = "keep"
    switch: Literal["on", "no_store", "no_load", "off"] = "on"
    start_lock_wait_seconds: float = 60.0
    log_level: str = "info"
    log_format: Literal["json", "text"] = "json"
    unknown_variables: tuple[str, ...] = ()


SETTINGS = tuple(name for name in GatewayConfig.__struct_fields__ if name != "unknown_variables")
_SIZES = frozenset({"pool_size", "slab_size", "min_chunk_bytes"})
_RANGES: Mapping[str, tuple[float, float]] = {
    "lease_seconds": (0.05, 86400),
    "reservation_seconds": (0.05, 86400),
    "heartbeat_seconds": (0.05, 60),
    "max_reserved_fraction": (0.0, 1.0),
    "drain_deadline_seconds": (0, 86400),
    "stop_deadline_seconds": (0, 86400),
    "watchdog_seconds": (0, 86400),
    "start_lock_wait_seconds": (0, 86400),
}


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: str | os.PathLike[str] | None = None
) -> GatewayConfig:
    """The settings in force.

    Args:
        flags: setting to value, as given on the command line; None stands for "not given".
        environ: the process's environment; an empty variable counts as not set.
        toml_path: a TOML file of settings, at its top level.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
    """
    values: dict[str, object] = {}
    if toml_path is not None:
        values |= _from_toml(Path(toml_path))
    values |= {name: value for name in SETTINGS if (value := environ.get(PREFIX + name.upper()))}
    values |= {name: value for name, value in flags.items() if value is not None}
    unknown = sorted(values.keys() - set(SETTINGS))
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, SETTINGS, n=1)]
        meant = f"did you mean {', '.join(near)}?" if len(near) == len(unknown) else f"known are {', '.join(SETTINGS)}"
        raise ConfigError(f"unknown setting {', '.join(unknown)}; {meant}")
    values = {name: _read(name, value) for name, value in values.items()}
    known = OTHER_VARIABLES | {PREFIX + name.upper() for name in SETTINGS}
    strangers = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    config = msgspec.convert({**values, "unknown_variables": strangers}, GatewayConfig)
    config = _with_slabs(config)
    _check_times(config)
    _check_addresses(config, environ)
    return config


def as_mapping(config: GatewayConfig) -> dict[str, object]:
    """Every setting by its name. None of them is a secret: the token's file is named, not read."""
    values = msgspec.structs.asdict(config)
    return {name: values[name] for name in SETTINGS}


def to_environ(config: GatewayConfig) -> dict[str, str]:
    """The settings as KVGATE_ variables, from which ``load`` makes the same settings in another process."""
    return {PREFIX + name.upper(): str(value) for name, value in as_mapping(config).items() if value != ""}


def parse_size(name: str, value: object) -> int:
    """Bytes from a whole number or a text like ``4GiB``.

    Raises:
        ConfigError: neither; or not a whole number of bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None or (size := float(match[1]) * factor) != int(size):
        raise ConfigError(f"{name} is {value!r}, expected bytes or a size like 512MiB or 4GiB")
    return int(size)


def parse_address(name: str, value: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` (``[::1]:9480`` for IPv6).

    Raises:
        ConfigError: not such a text.
    """
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name} is {value!r}, expected HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def admin_token(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The bearer token, from the file or the environment; empty when none is set.

    Raises:
        ConfigError: the file cannot be read, or holds nothing.
    """
    if not config.admin_token_file:
        return environ.get(PREFIX + "ADMIN_TOKEN", "").strip()
    try:
        token = Path(config.admin_token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"admin_token_file {config.admin_token_file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"admin_token_file {config.admin_token_file} holds no text in UTF-8") from None
    if not token:
        raise ConfigError(f"admin_token_file {config.admin_token_file} is empty, expected a token")
    return token


def _from_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {path} cannot be read: it is no text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path} cannot be read as TOML: {error}") from None
    tables = [f"[{name}]" for name, value in values.items() if isinstance(value, dict)]
    if tables:
        raise ConfigError(
            f"config file {path} has the table {', '.join(tables)}, expected settings at its top level, "
            'each on a line like pool_size = "4GiB"'
        )
    return values


def _read(name: str, value: object) -> object:
    """One value in its setting's type, checked."""
    if name in _SIZES:
        return parse_size(name, value)
    if name in _RANGES:
        return _read_number(name, value)
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is {value!r}, expected a text")
    text = os.fspath(value)
    if name == "transfer" and text not in ("auto", "pool", "handle"):
        raise ConfigError(f"transfer is {text!r}, expected auto, pool or handle")
    if name == "eviction_policy" and text not in ("lfu", "lru"):
        raise ConfigError(f"eviction_policy is {text!r}, expected lfu or lru")
    if name == "pool_on_stop" and text not in ("keep", "remove"):
        raise ConfigError(f"pool_on_stop is {text!r}, expected keep or remove")
    if name == "log_format" and text not in ("json", "text"):
        raise ConfigError(f"log_format is {text!r}, expected json or text")
    if name == "switch" and text not in _SWITCH_MODES:
        raise ConfigError(f"switch is {text!r}, expected one of {', '.join(_SWITCH_MODES)}")
    if name == "log_level" and text not in _LEVELS:
        raise ConfigError(f"log_level is {text!r}, expected one of {', '.join(_LEVELS)}")
    return text


def _read_number(name: str, value: object) -> float:
    low, high = _RANGES[name]
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{name} is {value!r}, expected a number from {low} to {high}")
    return number


def _with_slabs(config: GatewayConfig) -> GatewayConfig:
    """The pool's sizes, chosen where they were left open, checked and made to fit each other.

    Left open, a slab is a sixteenth of the pool as a power of two, at most 256 MiB, so that large chunks fit and a few
    sizes can share a small pool; the smallest slot is a 1024th of it. The pool is rounded down to whole slabs.
    """
    if config.pool_size < _PAGE:
        raise ConfigError(f"pool_size is {config.pool_size}, expected at least {_PAGE} bytes")
    slab = config.slab_size or min(_LARGEST_AUTOMATIC_SLAB, _power_of_two(config.pool_size // _SLABS_AT_LEAST))
    smallest = config.min_chunk_bytes or min(slab, _power_of_two(slab // _PLACES_A_SLAB))
    for name, size in (("slab_size", slab), ("min_chunk_bytes", smallest)):
        if size < _PAGE or size % _PAGE:
            raise ConfigError(f"{name} is {size}, expected a multiple of {_PAGE} bytes")
    if slab % smallest:
        raise ConfigError(f"slab_size is {slab}, expected a multiple of min_chunk_bytes {smallest}")
    pool = config.pool_size - config.pool_size % slab
    if pool == 0:
        raise ConfigError(f"slab_size is {slab}, expected at most pool_size {config.pool_size}")
    return msgspec.structs.replace(config, pool_size=pool, slab_size=slab, min_chunk_bytes=smallest)


def _power_of_two(size: int) -> int:
    """The largest power of two up to ``size``, a page at least."""
    return max(_PAGE, 1 << max(0, size.bit_length() - 1))


def _check_times(config: GatewayConfig) -> None:
    """What heartbeats renew must live longer than the time between two of them."""
    for name in ("lease_seconds", "reservation_seconds"):
        seconds = getattr(config, name)
        if seconds <= config.heartbeat_seconds:
            raise ConfigError(
                f"{name} is {seconds:g}, expected more than heartbeat_seconds {config.heartbeat_seconds:g}"
            )


def _check_addresses(config: GatewayConfig, environ: Mapping[str, str]) -> None:
    host, _ = parse_address("admin", config.admin)
    if config.probe:
        parse_address("probe", config.probe)
    if not admin_token(config, environ) and not is_loopback(host):
        raise ConfigError(
            f"admin is {config.admin}, which others can reach, and no token is set: "
            f"set admin_token_file or {PREFIX}ADMIN_TOKEN, or listen on 127.0.0.1"
        )
