"""Message to step to reply: what each request does to the core.

Owns: the order of checks before a step (readable, allowed here, this boot, state, deadline), one table from message
type to method, and that every request gets exactly one reply. Must not know: sockets, how the tables work. Runs on the
loop's thread.

What a step leaves to be written reaches the pool file before its reply is made: a grant nobody can lose, a commit
everybody can see.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from gateway.audit import AuditLog
from gateway.core.core import Core
from gateway.core.types import CoreConfig, PartySpec, Refusal
from gateway.engines import EngineStats
from gateway.handles.desk import Desk
from gateway.health import HealthChecks
from gateway.lock import LockObserver, party_offset
from gateway.metrics.outcomes import OUTCOMES
from gateway.pool_writer import PoolWriter
from gateway.snapshot import SnapshotSource
from gateway.switchboard import Switchboard
from gateway.traffic import OK, UNKNOWN, Traffic
from gateway.wire import codec, messages
from gateway.wire.codes import CopyStatus, ErrorCode, Lifecycle
from gateway.wire.messages import (
    ENDING,
    OLDEST_PROTOCOL_VERSION,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    AdminRequest,
    AnyReply,
    AnyRequest,
    Error,
)

_log = logging.getLogger("kvgate.service")

Result = TypeVar("Result")
Step = Callable[[Any, float], AnyReply]
#: Sends one reply to whoever asked.
Later = Callable[[bytes], None]


class Deferred(Enum):
    """The reply goes out when what was asked is done."""

    DEFERRED = auto()


def _to_nobody(reply: bytes) -> None:
    raise AssertionError(f"a reply of {len(reply)} bytes, and nobody to send it to")


#: Served while the pool's memory is still being reserved. Drain and resume get the lifecycle table's own refusal.
_BEFORE_READY = (
    *(messages.Hello, messages.Ping, messages.SnapshotRequest),
    *(messages.Drain, messages.Resume, messages.Switch),
)
#: Never too late: what ends something, and what only tells or asks.
_TIMELESS = (*ENDING, messages.Hello, messages.Ping, messages.SnapshotRequest)
_STARTING_RETRY_SECONDS = 0.5
#: A retry time is spread over this share of itself, so that engines refused together do not come back together.
_JITTER = 0.5


class Service:
    """Answers requests on behalf of one core."""

    def __init__(
        self,
        *,
        core: Core,
        config: CoreConfig,
        pool: PoolWriter,
        locks: LockObserver,
        engines: EngineStats,
        checks: HealthChecks,
        traffic: Traffic,
        audit: AuditLog,
        snapshots: SnapshotSource,
        switches: Switchboard,
        desk: Desk,
        verify: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Take the parts; all are used on the caller's thread only.

        Args:
            core: owner of all tables.
            config: the core's settings, told in WELCOME.
            pool: writes the core's effects.
            locks: tells whether a party's proof-of-death lock is held.
            engines: takes heartbeats' statistics.
            checks: health, told in every PONG.
            traffic: counts requests.
            audit: writes down operators' changes.
            snapshots: what SNAPSHOT shows.
            switches: what operators let engines do.
            desk: copies for workers in handle mode.
            verify: check every invariant of the core after each step; slow, for tests.
            monotonic: the node's monotonic clock.
            wall: Unix time.
        """
        self._core = core
        self._config = config
        self._pool = pool
        self._locks = locks
        self._engines = engines
        self._checks = checks
        self._traffic = traffic
        self._audit = audit
        self._snapshots = snapshots
        self._switches = switches
        self._desk = desk
        self._verify = verify
        self._boot = snapshots.boot
        self._pool_id = pool.facts().pool_id
        self._monotonic = monotonic
        self._wall = wall
        self._random = random.Random()
        self._steps: Mapping[type, Step] = {
            messages.Hello: self._hello,
            messages.Register: self._register,
            messages.Unregister: self._unregister,
            messages.Ping: self._ping,
            messages.Lookup: self._lookup,
            messages.Release: self._release,
            messages.EndSession: self._end_session,
            messages.Reserve: self._reserve,
            messages.Commit: self._commit,
            messages.Abort: self._abort,
            messages.Read: self._read,
            messages.EndRead: self._end_read,
            messages.SnapshotRequest: self._snapshot,
            messages.Drain: self._drain,
            messages.Resume: self._resume,
            messages.Clear: self._clear,
            messages.Fence: self._fence,
            messages.Switch: self._switch,
        }

    def answer(self, frame: bytes, *, is_admin: bool, later: Later = _to_nobody) -> bytes:
        """The reply to one frame, whatever is in it; empty: it goes out through ``later``, once.

        Args:
            frame: as it came.
            is_admin: whether it came on the operators' socket.
            later: sends a reply for which something must be done first.
        """
        began = self._monotonic()
        op, reply = self._reply(frame, began, later, is_admin=is_admin)
        return b"" if isinstance(reply, Deferred) else self._encode(op, reply, began)

    def _encode(self, op: str, reply: AnyReply, began: float) -> bytes:
        try:
            answer = codec.encode(reply)
        except codec.WireError as error:
            _log.error("reply_not_encoded", extra={"facts": {"op": op, "reason": error.message}})
            reply = self._error(reply.number, ErrorCode.INTERNAL, error.message)
            answer = codec.encode(reply)
        outcome = str(reply.code) if isinstance(reply, Error) else OK
        if self._verify and outcome not in OUTCOMES[op]:
            raise AssertionError(f"{op} ended as {outcome}, which the metrics table does not have")
        self._traffic.answered(op, outcome, self._monotonic() - began)
        return answer

    def _reply(self, frame: bytes, now: float, later: Later, *, is_admin: bool) -> tuple[str, AnyReply | Deferred]:
        try:
            request = codec.decode_request(frame)
        except codec.WireError as error:
            self._traffic.bad_message("too_large" if error.code is ErrorCode.TOO_LARGE else "bad_message")
            return UNKNOWN, self._error(error.number, error.code, error.message)
        op = str(request.__struct_config__.tag)
        try:
            self._check(request, now, is_admin=is_admin)
            return op, self._do(request, now, later)
        except Refusal as refusal:
            retry_ms = round(1000 * refusal.retry_after_seconds * (1 + _JITTER * self._random.random()))
            return op, self._error(request.number, refusal.code, refusal.message, retry_ms)
        except Exception:  # noqa: BLE001 - one request's defect must not end the daemon for all engines
            _log.exception("request_failed", extra={"facts": {"op": op}})
            return op, self._error(request.number, ErrorCode.INTERNAL, f"{op} failed; the daemon's log says why")

    def _check(self, request: AnyRequest, now: float, *, is_admin: bool) -> None:
        """Everything that can be said against a request before it reaches the tables."""
        if isinstance(request, AdminRequest) and not is_admin:
            raise Refusal(ErrorCode.FORBIDDEN, "this is an operators' message; it is served on the admin socket only")
        if request.boot != self._boot and not isinstance(request, messages.Hello):
            raise Refusal(
                ErrorCode.WRONG_BOOT,
                f"meant for boot {request.boot.hex() or 'none'}, this is boot {self._boot.hex()}: say HELLO",
            )
        if self._core.state is Lifecycle.STARTING and not isinstance(request, _BEFORE_READY):
            share = self._snapshots.progress.share
            raise Refusal(
                ErrorCode.STARTING, f"the pool's memory is being reserved, {share:.0%} done", _STARTING_RETRY_SECONDS
            )
        if isinstance(request, messages.SlotRequest) and self._desk.serves(request.party):
            raise Refusal(ErrorCode.INVALID, "this gateway copies for this party: it asks for no slots")
        if request.deadline and now > request.deadline and not isinstance(request, _TIMELESS):
            raise Refusal(ErrorCode.EXPIRED, f"read {now - request.deadline:.3f} s after its deadline")

    def _do(self, request: AnyRequest, now: float, later: Later) -> AnyReply | Deferred:
        try:
            if isinstance(request, messages.HandleRequest):
                self._copy(request, now, later)
                return Deferred.DEFERRED
            return self._steps[type(request)](request, now)
        finally:
            # Also after a refusal: a step may have found something else expired and set it free.
            self._pool.apply(self._core.take_effects())
            if self._verify:
                self._core.check()

    def _error(self, number: int, code: ErrorCode, message: str, retry_after_ms: int = 0) -> Error:
        return Error(number=number, boot=self._boot, code=code, message=message, retry_after_ms=retry_after_ms)

    def _done(self, request: AnyRequest) -> messages.Done:
        return messages.Done(number=request.number, boot=self._boot)

    # -- meeting

    def _hello(self, request: messages.Hello, now: float) -> AnyReply:
        version = min(request.newest_version, PROTOCOL_VERSION)
        if version < max(request.oldest_version, OLDEST_PROTOCOL_VERSION):
            raise Refusal(
                ErrorCode.INCOMPATIBLE,
                f"you speak wire versions {request.oldest_version} to {request.newest_version}, "
                f"this daemon {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}",
            )
        if request.pool_format != POOL_FORMAT:
            raise Refusal(
                ErrorCode.INCOMPATIBLE,
                f"you read pool format {request.pool_format}, this daemon's pool has format {POOL_FORMAT}",
            )
        health, _ = self._checks.health(now)
        return messages.Welcome(
            number=request.number,
            boot=self._boot,
            version=version,
            pool_format=POOL_FORMAT,
            pool_id=self._pool_id,
            state=self._core.state,
            health=health,
            monotonic=now,
            max_message_bytes=messages.MAX_MESSAGE_BYTES,
            max_keys=messages.MAX_KEYS,
            heartbeat_seconds=self._config.heartbeat_seconds,
            lease_seconds=self._config.lease_seconds,
            reservation_seconds=self._config.reservation_seconds,
            transfer=self._desk.mode,
        )

    def _register(self, request: messages.Register, now: float) -> AnyReply:
        spec = PartySpec(
            party=request.party,
            role=request.role,
            group=request.group,
            engine=request.engine,
            model=request.model,
            namespace=request.namespace,
            shard=request.shard,
            shard_count=request.shard_count,
            replica=request.replica,
            replicas=request.replicas,
            chunk_bytes=request.chunk_bytes,
            pid=request.pid,
            software=request.software,
            chunk_tokens=request.chunk_tokens,
        )
        self._desk.agree(request)
        with self._desk.opened(request) as seat:
            self._core.register(
                spec,
                lock_held=self._locks.is_held(party_offset(request.party)),
                holds_nothing=request.holds_nothing,
                now=now,
                wall=self._wall(),
            )
            seat()
        self._engines.register(request.party, request.engine, request.model, now)
        return self._done(request)

    def _unregister(self, request: messages.Unregister, now: float) -> AnyReply:
        self._core.unregister(request.party, now)
        self._desk.leave((request.party,), now)
        self._engines.forget(request.party, now)
        return self._done(request)

    def _ping(self, request: messages.Ping, now: float) -> AnyReply:
        view = self._core.heartbeat(
            request.party,
            next_operation=request.next_operation,
            operations=self._desk.heartbeat(request.party, request.next_operation, request.operations, now),
            next_session=request.next_session,
            sessions=request.sessions,
            now=now,
            wall=self._wall(),
        )
        if request.stats is not None and view.known:
            self._engines.heartbeat(request.party, request.stats, now, self._wall())
        health, reason = self._checks.health(now)
        return messages.Pong(
            number=request.number,
            boot=self._boot,
            state=view.state,
            health=health,
            known=view.known,
            reason=reason,
            drain=messages.DrainNotice(id=view.drain_id, deadline=view.drain_deadline) if view.drain_id else None,
            sessions=view.live_sessions,
            lease_deadline=view.lease_deadline,
            switch=view.switch,
        )

    # -- scheduler half

    def _lookup(self, request: messages.Lookup, now: float) -> AnyReply:
        found = self._core.lookup(request.party, request.session, request.namespace, request.keys, now, self._wall())
        return messages.Found(
            number=request.number, boot=self._boot, chunks=found.chunks, lease_deadline=found.lease_deadline
        )

    def _release(self, request: messages.Release, now: float) -> AnyReply:
        self._core.release(request.party, request.session, request.start, request.end, now)
        return self._done(request)

    def _end_session(self, request: messages.EndSession, now: float) -> AnyReply:
        self._core.end_session(request.party, request.session, now)
        return self._done(request)

    # -- worker half

    def _reserve(self, request: messages.Reserve, now: float) -> AnyReply:
        grants, deadline = self._core.reserve(
            request.party, request.operation, request.keys, request.depth, request.parent, now
        )
        return messages.Reserved(
            number=request.number,
            boot=self._boot,
            pool_id=self._pool_id,
            grants=tuple(messages.SlotGrant(g.status, g.slot, g.offset, g.generation) for g in grants),
            reservation_deadline=deadline,
        )

    def _commit(self, request: messages.Commit, now: float) -> AnyReply:
        if request.pool_id != self._pool_id:
            raise Refusal(
                ErrorCode.INVALID,
                f"filled slots of pool {request.pool_id.hex()}, this daemon's is {self._pool_id.hex()}: map it again",
            )
        result = self._core.commit(request.party, request.operation, request.reservations, now)
        return messages.Committed(number=request.number, boot=self._boot, results=result.statuses)

    def _abort(self, request: messages.Abort, now: float) -> AnyReply:
        self._core.abort(request.party, request.operation, request.reservations, now)
        return self._done(request)

    def _read(self, request: messages.Read, now: float) -> AnyReply:
        grants, deadline = self._core.read(request.party, request.operation, request.keys, now, self._wall())
        return messages.Readable(
            number=request.number,
            boot=self._boot,
            pool_id=self._pool_id,
            slots=tuple(messages.ReadSlot(g.slot, g.offset, g.generation) for g in grants),
            lease_deadline=deadline,
        )

    def _end_read(self, request: messages.EndRead, now: float) -> AnyReply:
        self._core.end_read(request.party, request.operation, now)
        return self._done(request)

    # -- worker half, handle mode

    def _copy(self, request: messages.HandleRequest, now: float, later: Later) -> None:
        """Hand a request to the desk; its reply goes out through ``later``, perhaps before this returns.

        Raises:
            Refusal: nothing has changed, and there is no other reply.
        """
        op = str(request.__struct_config__.tag)

        def finish(results: tuple[CopyStatus, ...], event: bytes) -> None:
            copied = messages.Copied(number=request.number, boot=self._boot, results=results, event=event)
            later(self._encode(op, copied, now))

        def acknowledge() -> None:
            later(self._encode(op, self._done(request), now))

        match request:
            case messages.Store():
                self._desk.store(request, now, finish)
            case messages.Retrieve():
                self._desk.retrieve(request, now, finish)
            case messages.Cancel():
                self._desk.cancel(request, now, acknowledge)
            case messages.ReleaseEvent():
                self._desk.release_event(request)
                acknowledge()

    # -- operators

    def _snapshot(self, request: messages.SnapshotRequest, now: float) -> AnyReply:
        return self._snapshots.take(
            request.number, transfers=request.transfers, max_transfers=request.max_transfers, now=now
        )

    def _drain(self, request: messages.Drain, now: float) -> AnyReply:
        if request.engine:
            already = self._change(
                "engine_drain",
                request,
                lambda: self._core.drain_engine(request.engine, request.deadline_seconds, now),
                self._engine_state,
            )
            return messages.Drained(number=request.number, boot=self._boot, already=already)
        already = self._change(
            "drain",
            request,
            lambda: self._core.drain(
                deadline_seconds=request.deadline_seconds,
                reason=request.reason,
                requested_by=request.requested_by,
                flush=request.flush,
                exit=request.exit,
                now=now,
                wall=self._wall(),
            ),
            self._gateway_state,
        )
        return messages.Drained(number=request.number, boot=self._boot, already=already, drain=self._snapshots.drain())

    def _resume(self, request: messages.Resume, now: float) -> AnyReply:
        if request.engine:
            self._change(
                "engine_resume", request, lambda: self._core.resume_engine(request.engine, now), self._engine_state
            )
        else:
            self._change("resume", request, lambda: self._core.resume(now, self._wall()), self._gateway_state)
        return self._done(request)

    def _clear(self, request: messages.Clear, now: float) -> AnyReply:
        try:
            namespace = bytes.fromhex(request.namespace)
        except ValueError:
            raise Refusal(ErrorCode.INVALID, f"namespace is {request.namespace!r}, expected 32 hex digits") from None
        if sum((bool(request.model), bool(namespace), request.all)) != 1:
            raise Refusal(ErrorCode.INVALID, "expected exactly one of model, namespace and all")

        def step() -> messages.Cleared:
            result = self._core.clear(
                model=request.model, namespace=namespace, all=request.all, dry_run=request.dry_run, now=now
            )
            return messages.Cleared(
                number=request.number,
                boot=self._boot,
                chunks=result.chunks,
                bytes=result.bytes,
                held_chunks=result.held_chunks,
            )

        return step() if request.dry_run else self._change("clear", request, step, self._ready_chunks)

    def _fence(self, request: messages.Fence, now: float) -> AnyReply:
        parties = self._desk.parties_of(request.engine)
        self._change("fence", request, lambda: self._core.fence(request.engine, now), self._engine_state)
        self._desk.leave(parties, now)
        self._engines.remove_engine(request.engine)
        return self._done(request)

    def _switch(self, request: messages.Switch, _now: float) -> AnyReply:
        step = partial(self._switches.set, request.scope, request.name, request.mode)
        self._change("switch", request, step, lambda asked: self._switches.mode_of(asked.scope, asked.name))
        return self._done(request)

    def _change(
        self,
        action: str,
        request: messages.Drain | messages.Resume | messages.Clear | messages.Fence | messages.Switch,
        step: Callable[[], Result],
        state: Callable[[Any], str],
    ) -> Result:
        """Do a change and write it down, whether it was done or refused."""
        before = state(request)
        named = ("engine", "model", "namespace", "all", "scope", "name", "reason")
        target = {name: getattr(request, name, "") for name in named}
        try:
            result = step()
        except Refusal as refusal:
            self._audit.record(
                action,
                who=request.requested_by,
                peer=request.peer,
                before=before,
                after=state(request),
                result="refused",
                code=str(refusal.code),
                **target,
            )
            raise
        self._audit.record(
            action,
            who=request.requested_by,
            peer=request.peer,
            before=before,
            after=state(request),
            result="ok",
            **target,
        )
        return result

    def _gateway_state(self, _request: messages.Drain | messages.Resume) -> str:
        return str(self._core.state)

    def _engine_state(self, request: messages.Drain | messages.Resume | messages.Fence) -> str:
        state, is_fenced = self._core.engine_states().get(request.engine, ("unknown", False))
        return "fenced" if is_fenced else str(state)

    def _ready_chunks(self, _request: messages.Clear) -> str:
        return f"{self._core.slot_counts()['ready']} chunks"
