"""A core that says what a test tells it to: the wire's two sockets, answered from a table.

For what a real core cannot show on demand: an answer of every error code, no answer at all, engines in every state.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec
import zmq

from gateway.wire import codec
from gateway.wire.codes import ErrorCode, Health, Lifecycle, OperationKind, OutcomeKind, Phase, Reason, Role, State
from gateway.wire.messages import (
    PROTOCOL_VERSION,
    CheckInfo,
    DrainInfo,
    EngineInfo,
    Error,
    Hello,
    NamespaceInfo,
    OperationInfo,
    PartyInfo,
    Ping,
    Pong,
    Remaining,
    Reply,
    Request,
    SlotCounts,
    SnapshotReply,
    SnapshotRequest,
    TransferInfo,
    Welcome,
)

BOOT = bytes(range(16))


def snapshot(**changes: object) -> SnapshotReply:
    """A healthy gateway with one engine; ``changes`` replace fields."""
    base = SnapshotReply(
        number=0,
        boot=BOOT,
        version="0.1.0",
        state=Lifecycle.READY,
        health=Health.HEALTHY,
        ready=True,
        checks=(check("loop"), check("reaper"), check("pool"), check("admin", critical=False)),
        started_at=1_700_000_000.0,
        progress=1.0,
        drain=None,
        engines=(engine(),),
        namespaces=(NamespaceInfo(namespace="ab" * 16, model="m", chunks=3, bytes=3072, last_hit_at=0.0),),
        slots=SlotCounts(
            ready=3, writing=1, quarantined=0, ready_bytes=3072, writing_bytes=1024, quarantined_bytes=0,
            free_bytes=4096, pool_bytes=8192, allocated_bytes=8192,
        ),
        gauges=(),
        counters=(),
        histograms=(),
        run_dir="/run/kvgate",
        loop_age_seconds=0.01,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def check(name: str, *, ok: bool = True, critical: bool = True, reason: str = "") -> CheckInfo:
    return CheckInfo(name=name, ok=ok, critical=critical, age_seconds=0.1, reason=reason)


def engine(name: str = "e1", **changes: object) -> EngineInfo:
    base = EngineInfo(
        name=name, model="m", state=Lifecycle.READY, fenced=False,
        parties=(
            PartyInfo(
                party="cd" * 16, role=Role.WORKER, group="g", pid=1, namespace="ab" * 16, shard=0, replica=0,
                state=State.HEALTHY, registered_at=1.0, last_heartbeat_at=2.0, reserved_bytes=0,
                quarantined_bytes=0, read_leases=0, sessions=0, software="test",
            ),
        ),
        pending_stores=2, pending_retrieves=1, retained_events=3, last_heartbeat_at=2.0,
        gauges=(), counters=(), histograms=(),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def drain(**changes: object) -> DrainInfo:
    """A drain under way."""
    base = DrainInfo(
        id="d1", state=Lifecycle.DRAINING, reason="r", requested_by="t", requested_at=5.0, deadline_at=35.0,
        finished_at=0.0, flush=False, exit=False, outcome=None, remaining=Remaining(operations=2, leases=1),
        done=4, aborted=0, engines=("e1",),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def transfer(
    number: int, request_id: str = "r1", *, outcome: OutcomeKind | None = None, **changes: object
) -> TransferInfo:
    """One operation of engine ``e1``, pending unless it has an outcome."""
    operation = OperationInfo(
        number=number,
        request_id=request_id,
        kind=OperationKind.STORE,
        phase=Phase.WAITING if outcome is None else Phase.SETTLED,
        age_seconds=1.0,
        chunks=4,
        outcome=outcome,
        reason=Reason.NONE,
        settled_at=0.0 if outcome is None else 9.0,
    )
    return TransferInfo(engine="e1", party="cd" * 16, operation=msgspec.structs.replace(operation, **changes))


class CoreDouble:
    """Binds ``gateway.sock`` and ``admin.sock`` and answers on its own thread until closed.

    Attributes:
        answers: by request type, what to answer; number and boot are filled in. None: no answer.
        received: every request in the order it came, HELLO left out.
        hears_engines: False: ``gateway.sock`` is there and silent.
        hears_admin: the same for ``admin.sock``.
    """

    def __init__(self, base: Path) -> None:
        self.run_dir, self.admin_dir = base / "run", base / "run.admin"
        self.run_dir.mkdir(mode=0o700)
        self.admin_dir.mkdir(mode=0o700)
        self.reset()
        self._context = zmq.Context()
        self._ended = threading.Event()
        self._engines = self._bind(self.run_dir / "gateway.sock")
        self._admin = self._bind(self.admin_dir / "admin.sock")
        self._thread = threading.Thread(target=self._run, name="core-double")
        self._thread.start()

    def reset(self) -> None:
        """Healthy and ready again, with nothing received."""
        self.answers: dict[type[Request], Callable[[Request], Reply | None]] = {
            SnapshotRequest: lambda _: snapshot(),
            Ping: lambda _: Pong(number=0, boot=b"", state=Lifecycle.READY, health=Health.HEALTHY, known=False),
        }
        self.received: list[Request] = []
        self.hears_engines = self.hears_admin = True

    def says(self, request: type[Request], reply: Reply) -> None:
        """Answer this kind of request with this reply from now on."""
        self.answers[request] = lambda _: reply

    def refuses(self, request: type[Request], code: ErrorCode, message: str = "no", retry_after_ms: int = 0) -> None:
        self.says(request, Error(number=0, boot=b"", code=code, message=message, retry_after_ms=retry_after_ms))

    def asked(self, request: type[Request]) -> list[Request]:
        """The requests of this kind received so far."""
        return [message for message in self.received if isinstance(message, request)]

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for socket in (self._engines, self._admin):
            socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, path: Path) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        socket.bind(f"ipc://{path}")
        return socket

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._engines, self._admin):
            poller.register(socket, zmq.POLLIN)
        while not self._ended.is_set():
            for socket, _ in poller.poll(10):
                peer, frame = socket.recv_multipart()
                hears = self.hears_admin if socket is self._admin else self.hears_engines
                reply = self._answer(codec.decode_request(frame)) if hears else None
                if reply is not None:
                    socket.send_multipart([peer, codec.encode(reply)])

    def _answer(self, request: Request) -> Reply | None:
        if isinstance(request, Hello):
            reply: Reply | None = Welcome(
                number=0, boot=b"", version=PROTOCOL_VERSION, pool_format=1, pool_id=bytes(16),
                state=Lifecycle.READY, health=Health.HEALTHY, monotonic=0.0, max_message_bytes=1 << 20,
                max_keys=8192, heartbeat_seconds=1, lease_seconds=10, reservation_seconds=30,
            )  # fmt: skip
        else:
            self.received.append(request)
            reply = self.answers.get(type(request), lambda _: None)(request)
        return None if reply is None else msgspec.structs.replace(reply, number=request.number, boot=BOOT)
