"""A gateway that does as the test says: a real pool file and lock, a real socket, and answers that can be replaced."""

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec
import zmq

from gateway.pool.file import PoolFile
from gateway.wire import codec
from gateway.wire.codes import CommitStatus, Health, Lifecycle, ReserveStatus
from gateway.wire.messages import (
    MAX_KEYS,
    MAX_MESSAGE_BYTES,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    Commit,
    Committed,
    Done,
    DrainNotice,
    Found,
    Hello,
    Lookup,
    Ping,
    Pong,
    Read,
    Readable,
    ReadSlot,
    Reply,
    Request,
    Reserve,
    Reserved,
    SlotGrant,
    Welcome,
)

#: Makes the answer to a request: a reply, raw bytes, or None for silence.
Answer = Callable[[Request], Reply | bytes | None]

SLAB_BYTES = 256 << 10


class ScriptedGateway:
    """Answers as a healthy gateway would, but for what ``answers`` replaces. ``received`` has every request."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.boot = secrets.token_bytes(16)
        self.state = Lifecycle.READY
        self.health = Health.HEALTHY
        self.drain: DrainNotice | None = None
        self.knows_parties = True
        self.lease_seconds = 10.0
        self.received: list[Request] = []
        self.answers: dict[type[Request], Answer] = {}
        self.pool = PoolFile.open(
            run_dir / "pool", data_bytes=8 * SLAB_BYTES, slab_bytes=SLAB_BYTES, min_slot_bytes=4096
        )
        self._generation = 0
        self._context = zmq.Context(io_threads=1)
        self._stops = False
        self._thread = threading.Thread(target=self._serve, name="scripted-gateway", daemon=True)
        self._thread.start()

    def of(self, kind: type[Request]) -> list[Request]:
        """The requests of one kind, in the order they came."""
        return [request for request in list(self.received) if isinstance(request, kind)]

    def silence(self, *kinds: type[Request]) -> None:
        """Answer these no more."""
        for kind in kinds:
            self.answers[kind] = lambda _: None

    def restart_unseen(self) -> None:
        """Be another boot from now on, so quickly that nobody saw the lock free."""
        self.boot = secrets.token_bytes(16)
        self.knows_parties = False

    def hang_up(self) -> None:
        """Close the socket. The lock is held on: it does not look dead."""
        self._stops = True
        self._thread.join()

    def close(self) -> None:
        self.hang_up()
        self._context.term()
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _serve(self) -> None:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self.run_dir / 'gateway.sock'}")
        while not self._stops:
            if not socket.poll(5):
                continue
            sender, frame = socket.recv_multipart()
            request = codec.decode_request(frame)
            self.received.append(request)
            answer = self.answers.get(type(request), self.answer)(request)
            if isinstance(answer, bytes):
                socket.send_multipart([sender, answer])
            elif answer is not None:
                answer = msgspec.structs.replace(
                    answer, number=answer.number or request.number, boot=answer.boot or self.boot
                )
                socket.send_multipart([sender, codec.encode(answer)])
        socket.close(linger=0)

    def answer(self, request: Request) -> Reply:
        """What a healthy gateway says."""
        now = time.monotonic()
        match request:
            case Hello():
                return Welcome(
                    number=0,
                    boot=b"",
                    version=PROTOCOL_VERSION,
                    pool_format=POOL_FORMAT,
                    pool_id=self.pool.pool_id,
                    state=self.state,
                    health=self.health,
                    monotonic=now,
                    max_message_bytes=MAX_MESSAGE_BYTES,
                    max_keys=MAX_KEYS,
                    heartbeat_seconds=0.1,
                    lease_seconds=self.lease_seconds,
                    reservation_seconds=30,
                )
            case Ping():
                return Pong(
                    number=0,
                    boot=b"",
                    state=self.state,
                    health=self.health,
                    known=self.knows_parties,
                    drain=self.drain,
                    sessions=request.sessions,
                    lease_deadline=now + self.lease_seconds,
                )
            case Lookup():
                return Found(number=0, boot=b"", chunks=len(request.keys), lease_deadline=now + self.lease_seconds)
            case Reserve():
                return Reserved(
                    number=0,
                    boot=b"",
                    pool_id=self.pool.pool_id,
                    grants=tuple(self._grant(i) for i in range(len(request.keys))),
                    reservation_deadline=now + 30,
                )
            case Commit():
                results = (CommitStatus.COMMITTED,) * len(request.reservations)
                return Committed(number=0, boot=b"", results=results)
            case Read():
                slots = (ReadSlot(),) * len(request.keys)
                return Readable(number=0, boot=b"", pool_id=self.pool.pool_id, slots=slots)
            case _:
                return Done(number=0, boot=b"")

    def _grant(self, i: int) -> SlotGrant:
        self._generation += 1
        slab = i % self.pool.num_slabs
        return SlotGrant(ReserveStatus.GRANTED, slab * self.pool.slots_per_slab, slab * SLAB_BYTES, self._generation)
