"""One registered process half over a bare socket: takes its lock, maps the pool, asks for what the test wants."""

import hashlib
import os
from pathlib import Path
from typing import Self

from gateway.lock import DeathLock, party_offset
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Role
from gateway.wire.messages import (
    Abort,
    AnyReply,
    Commit,
    Committed,
    Done,
    EndRead,
    EndSession,
    Found,
    Lookup,
    Ping,
    Pong,
    Read,
    Readable,
    Register,
    Reserve,
    Reserved,
    SlotGrant,
)
from tests.support.raw import RawDealer

CHUNK_BYTES = 64 << 10
NAMESPACE = b"test namespace 1"


def chunk_key(number: int) -> bytes:
    """A key of its own for each number."""
    return hashlib.sha256(b"key %d" % number).digest()


def chunk_bytes(number: int, size: int = CHUNK_BYTES) -> bytes:
    """The bytes that belong to that key: no two chunks look alike, and no part of one looks like another part."""
    return hashlib.shake_256(b"bytes %d" % number).digest(size)


class RawParty:
    """A party as the protocol sees it. Its lock is held by this process until ``die`` or ``close``."""

    def __init__(
        self,
        run_dir: Path,
        role: Role = Role.WORKER,
        *,
        engine: str = "engine-a",
        group: str = "group-1",
        model: str = "model-a",
        namespace: bytes = NAMESPACE,
        chunk_bytes: int = CHUNK_BYTES,
        party: bytes | None = None,
    ) -> None:
        self.id = party or os.urandom(16)
        self._role = role
        self._names = {"engine": engine, "group": group, "model": model, "namespace": namespace}
        self._chunk_bytes = chunk_bytes if role is Role.WORKER else 0
        self._run_dir = run_dir
        self.pool = PoolMapping.open(run_dir / "pool")
        self.lock: DeathLock | None = DeathLock.take(run_dir / "pool", party_offset(self.id))
        self.dealer = RawDealer(run_dir / "gateway.sock")
        self._operation = 0

    # -- meeting
    def try_register(self, *, holds_nothing: bool = True) -> AnyReply:
        """HELLO and REGISTER; the reply to the second, whatever it is."""
        self.dealer.hello()
        return self.dealer.ask(self.register_message(holds_nothing=holds_nothing))

    def register_message(self, *, holds_nothing: bool = True) -> Register:
        return self._register(holds_nothing)

    def _register(self, holds_nothing: bool, **fields) -> Register:
        return Register(
            number=0,
            party=self.id,
            role=self._role,
            chunk_bytes=self._chunk_bytes,
            holds_nothing=holds_nothing,
            pid=os.getpid(),
            **self._names,
            **fields,
        )

    def register(self, *, holds_nothing: bool = True) -> Self:
        reply = self.try_register(holds_nothing=holds_nothing)
        assert isinstance(reply, Done), reply
        return self

    def reconnect(self) -> None:
        """A new socket, as after a restart of the daemon. The lock stays."""
        self.dealer.close()
        self.dealer = RawDealer(self._run_dir / "gateway.sock")

    def ping(self, **fields) -> Pong:
        reply = self.dealer.ask(Ping(number=0, party=self.id, **fields))
        assert isinstance(reply, Pong), reply
        return reply

    # -- worker half
    def next_operation(self) -> int:
        self._operation += 1
        return self._operation

    def try_reserve(self, numbers: range | tuple[int, ...], operation: int) -> AnyReply:
        keys = tuple(chunk_key(number) for number in numbers)
        return self.dealer.ask(Reserve(number=0, party=self.id, operation=operation, keys=keys))

    def reserve(self, numbers: range | tuple[int, ...], operation: int) -> tuple[SlotGrant, ...]:
        reply = self.try_reserve(numbers, operation)
        assert isinstance(reply, Reserved), reply
        return reply.grants

    def write(self, grant: SlotGrant, number: int) -> None:
        with self.pool.data(grant.offset, self._chunk_bytes) as view:
            view[:] = chunk_bytes(number, self._chunk_bytes)

    def try_commit(self, operation: int, *generations: int) -> AnyReply:
        return self.dealer.ask(
            Commit(number=0, party=self.id, operation=operation, pool_id=self.pool.pool_id, reservations=generations)
        )

    def commit(self, operation: int, *generations: int) -> tuple[str, ...]:
        reply = self.try_commit(operation, *generations)
        assert isinstance(reply, Committed), reply
        return tuple(str(result) for result in reply.results)

    def store(self, numbers: range | tuple[int, ...]) -> None:
        """Reserve, write and commit; all of it must go through."""
        operation = self.next_operation()
        grants = self.reserve(numbers, operation)
        assert {str(grant.status) for grant in grants} <= {"granted", "exists"}, grants
        granted = [(n, grant) for n, grant in zip(numbers, grants, strict=True) if grant.slot >= 0]
        for number, grant in granted:
            self.write(grant, number)
        results = self.commit(operation, *(grant.generation for _, grant in granted))
        assert set(results) <= {"committed"}, results

    def abort(self, operation: int) -> None:
        reply = self.dealer.ask(Abort(number=0, party=self.id, operation=operation))
        assert isinstance(reply, Done), reply

    def try_read(self, numbers: range | tuple[int, ...], operation: int) -> AnyReply:
        keys = tuple(chunk_key(number) for number in numbers)
        return self.dealer.ask(Read(number=0, party=self.id, operation=operation, keys=keys))

    def load(self, numbers: range | tuple[int, ...]) -> list[bytes | None]:
        """What the pool holds of these chunks, each checked by its header afterwards; None: not there."""
        operation = self.next_operation()
        reply = self.try_read(numbers, operation)
        assert isinstance(reply, Readable), reply
        loaded: list[bytes | None] = []
        for number, slot in zip(numbers, reply.slots, strict=True):
            if slot.slot < 0:
                loaded.append(None)
                continue
            with self.pool.data(slot.offset, self._chunk_bytes) as view:
                copied = bytes(view)
            header = self.pool.read_header(slot.slot)
            assert header is not None
            assert (header.key, header.generation) == (chunk_key(number), slot.generation)
            loaded.append(copied)
        self.end_read(operation)
        return loaded

    def end_read(self, operation: int) -> None:
        reply = self.dealer.ask(EndRead(number=0, party=self.id, operation=operation))
        assert isinstance(reply, Done), reply

    # -- scheduler half
    def try_lookup(self, numbers: range | tuple[int, ...], session: int) -> AnyReply:
        keys = tuple(chunk_key(number) for number in numbers)
        return self.dealer.ask(
            Lookup(number=0, party=self.id, session=session, namespace=self._names["namespace"], keys=keys)
        )

    def lookup(self, numbers: range | tuple[int, ...], session: int) -> int:
        reply = self.try_lookup(numbers, session)
        assert isinstance(reply, Found), reply
        return reply.chunks

    def end_session(self, session: int) -> None:
        reply = self.dealer.ask(EndSession(number=0, party=self.id, session=session))
        assert isinstance(reply, Done), reply

    # -- end
    def die(self) -> None:
        """Give the lock up without a word, as a killed process does."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def close(self) -> None:
        self.dealer.close()
        self.pool.close()
        self.die()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()
