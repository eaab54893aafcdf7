"""Settings of one adapter, checked when they are made."""

import os
import re
import socket
from dataclasses import dataclass

from adapter.admin import address
from gateway.wire.codes import TransferMode

_ENGINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


@dataclass(frozen=True)
class AdapterConfig:
    """Settings of a worker or scheduler adapter. Times are seconds.

    Attributes:
        heartbeat_seconds: between two PINGs.
        lookup_timeout_seconds: past it a lookup says 0.
        operation_deadline_seconds: past it a store or retrieve stops waiting and settles.
        drain_deadline_seconds: default deadline of ``drain``.
        max_pending_ops: unsettled operations; past it stores are refused and lookups miss.
        max_pending_bytes: bytes of unsettled operations; past it stores are refused.
        copy_threads: threads that copy chunks.
        transfer: who copies: ``"pool"``, this process; ``"handle"``, the gateway, through the KV cache's memory, which
            is moved to shared memory for that; ``"auto"``: this process. The gateway must allow it.
        admin: an HTTP admin server in the worker half (extra ``kvgate[admin]``): HOST:PORT, or ``"unix"``, a socket
            named by the party's id in a private directory; None: none. A scheduler half has nothing to drain, and none.
        admin_token_file: a file with the server's bearer token; None: ``KVGATE_ADMIN_TOKEN``, or no token, which only
            an address on loopback may do.
        engine_name: the operator's name for this engine; None: ``KVGATE_ENGINE_NAME``, ``POD_NAME``, or the host.

    Raises:
        ValueError: a value is out of range; the message names it and what was expected.
    """

    heartbeat_seconds: float = 1.0
    lookup_timeout_seconds: float = 0.2
    operation_deadline_seconds: float = 30.0
    drain_deadline_seconds: float = 30.0
    max_pending_ops: int = 4096
    max_pending_bytes: int = 4 << 30
    copy_threads: int = 1
    transfer: str = "auto"
    admin: str | None = None
    admin_token_file: str | None = None
    engine_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("heartbeat_seconds", "lookup_timeout_seconds", "operation_deadline_seconds"):
            _check(name, getattr(self, name), minimum=0.001, maximum=86400)
        _check("drain_deadline_seconds", self.drain_deadline_seconds, minimum=0, maximum=86400)
        _check("max_pending_ops", self.max_pending_ops, minimum=1, maximum=8192, whole=True)
        _check("max_pending_bytes", self.max_pending_bytes, minimum=1, maximum=1 << 62, whole=True)
        _check("copy_threads", self.copy_threads, minimum=1, maximum=64, whole=True)
        if self.transfer not in tuple(TransferMode):
            raise ValueError(f"transfer is {self.transfer!r}, expected 'auto', 'pool' or 'handle'")
        if self.admin is not None:
            address.check(self.admin)
        if self.engine_name is not None and not _ENGINE_NAME.fullmatch(self.engine_name):
            raise ValueError(f"engine_name is {self.engine_name!r}, expected 1 to 63 of A-Z a-z 0-9 . _ -")

    def resolved_engine_name(self) -> str:
        """The engine's name: the setting, ``KVGATE_ENGINE_NAME``, ``POD_NAME``, or the host name made to fit."""
        if self.engine_name is not None:
            return self.engine_name
        for variable in ("KVGATE_ENGINE_NAME", "POD_NAME"):
            name = os.environ.get(variable)
            if name:
                if not _ENGINE_NAME.fullmatch(name):
                    raise ValueError(f"{variable} is {name!r}, expected 1 to 63 of A-Z a-z 0-9 . _ -")
                return name
        return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63] or "engine"


def _check(name: str, value: float, *, minimum: float, maximum: float, whole: bool = False) -> None:
    kind = "a whole number" if whole else "a number"
    fits = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not fits or not minimum <= value <= maximum:
        raise ValueError(f"{name} is {value!r}, expected {kind} from {minimum} to {maximum}")
