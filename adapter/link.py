"""The adapter's line to its gateway: one thread, one socket, one lock.

Owns: the socket, the requests that wait for replies, the party's hold on the pool file, the ``Liveness`` table it feeds
and obeys, and the adapter's one lock. Must not know: operations, lookups, memory: those are the ``Half`` it serves.

Threads: the link thread runs the loop below. Engine threads call ``post``, ``drain``, ``resume``, ``close`` and read
``state``; they take the lock for a few microseconds and never wait for the gateway. One that may wait, and wants an
answer soon, calls ``turn``: it runs the loop itself until it has what it wants, the link thread sleeping on, and is
spared two changes of thread. So what is said here of the link thread is true of whoever has the turn: it alone touches
the socket, the requests and the inbox's calls. The turn is taken before the lock, never with it.

The lock (re-entrant, the only one of an adapter) covers the half's tables and the liveness table together: a state that
refuses work and the clean-up of what was accepted before it are one step, with no submit in between.

Each round of the loop: receive what came, make the calls that were posted, then let time pass: end requests that have
waited too long, look at the daemon's lock (at least every 50 ms: free after held is proof of death), say what is due.
A round leaves nothing unread or unmade behind where the next is to begin with a sleep.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from adapter.attachment import PoolSight, PoolWatch
from adapter.dealer import Dealer
from adapter.half import Half, PoolUnusableError
from adapter.inbox import Inbox
from adapter.liveness import EndDrain, Liveness, Message, Order, Reconnect, Say, Settle, WindDown
from adapter.log import EngineLog
from adapter.requests import Finish, Requests
from adapter.switches import SwitchWatch
from gateway import __version__, access
from gateway.wire import codec
from gateway.wire.codes import ErrorCode, Reason, State, SwitchMode, Trigger
from gateway.wire.messages import (
    OLDEST_PROTOCOL_VERSION,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    AnyReply,
    Done,
    Error,
    Found,
    Hello,
    Ping,
    Pong,
    Readable,
    Reply,
    Request,
    Reserved,
    SwitchInfo,
    Unregister,
    Welcome,
)

SOFTWARE = f"kvgate {__version__}"

#: Between two looks at the daemon's lock. With the kernel's own time for a killed process, death is seen in 0.2 s.
LOCK_LOOK_SECONDS = 0.05
#: A request without an own, earlier deadline ends after this: just within the 3 s a caller may be kept.
REPLY_SECONDS = 2.9
#: Clocks that differ by more are two clocks: one reading of the gateway's is compared with two of ours around it.
CLOCK_SLACK_SECONDS = 1.0
#: How long leaving waits for the gateway to hear of it.
LEAVE_SECONDS = 0.3
#: A caller waits so long for the turn, which is much longer than a round takes, before it leaves the work to others.
TURN_SECONDS = 0.005
#: Replies read in one round, so that a flood of them cannot keep the thread from its clock.
MAX_REPLIES_A_ROUND = 256
#: Posted calls made in one round, for the same reason.
MAX_CALLS_A_ROUND = 1024
#: Calls that are not urgent and are left to the link thread by a caller that has the turn: they cost it a send each.
MAX_CALLS_LEFT = 64
#: Longest path of a Unix socket: ``sun_path`` holds 108 bytes with its final zero.
MAX_SOCKET_PATH_BYTES = 107

_REASON_OF_TRIGGER = {
    Trigger.GATEWAY_UNHEALTHY: Reason.GATEWAY_UNHEALTHY,
    Trigger.UNRESPONSIVE: Reason.UNRESPONSIVE,
    Trigger.DEAD: Reason.DEAD,
    Trigger.RESTARTED: Reason.RESTARTED,
    Trigger.CLOSE: Reason.CLOSED,
}
_REASON_OF_STATE = {
    State.DRAINING: Reason.DRAINING,
    State.UNHEALTHY: Reason.GATEWAY_UNHEALTHY,
    State.UNRESPONSIVE: Reason.UNRESPONSIVE,
    State.DEAD: Reason.DEAD,
    State.CLOSED: Reason.CLOSED,
}


class Link:
    """One party of the gateway.

    Args:
        run_dir: the gateway's shared directory.
        heartbeat_seconds: between two PINGs.
        half: whom it serves. It may use the link only once ``start`` was called.
        name: of the thread.
        log: where it says what befell it.
        switches: what operators let it do.

    Raises:
        ValueError: the socket's path is too long for a Unix socket.
    """

    def __init__(  # noqa: PLR0917 - one party's facts
        self,
        run_dir: str | os.PathLike[str],
        heartbeat_seconds: float,
        half: Half,
        name: str,
        log: EngineLog,
        switches: SwitchWatch,
    ) -> None:
        run_path = Path(run_dir)
        self._socket_path = run_path / "gateway.sock"
        size = len(os.fsencode(self._socket_path))
        if size > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"socket path {self._socket_path} takes {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are allowed"
            )
        #: Random, and never derived from a process id: those repeat across containers.
        self.party = secrets.token_bytes(16)
        self.lock = threading.RLock()
        #: Notified when the state changes or something settles.
        self.changed = threading.Condition(self.lock)
        #: Replies that met no request of theirs.
        self.late_replies = 0
        self._half = half
        self._log = log
        self._switches = switches
        self._liveness = Liveness(heartbeat_seconds, time.monotonic())
        self._requests = Requests()
        self._inbox = Inbox()
        self._process = os.getpid()
        self._seen_state = State.CONNECTING  # as last told to those who wait
        self._has_ended = False
        self._turn = threading.Lock()  # of the loop: whoever has it does the link thread's work
        self._is_leaving = False
        # Of whoever has the turn:
        self._dealer: Dealer | None = None  # while the thread runs
        self._pool = PoolWatch(run_path / "pool", self.party, heartbeat_seconds, self._complain)
        self._welcome: Welcome | None = None
        self._announced_to = b""  # the boot to which a REGISTER was sent: it may know this party
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for the gateway. Returns at once."""
        self._thread.start()

    def discard(self) -> None:
        """Give up a link that was never started."""
        self._inbox.close()

    @property
    def state(self) -> State:
        """The adapter's view of its gateway."""
        return self._liveness.state

    @property
    def gateway_state(self) -> State:
        """The same, whatever an operator asked of the adapter."""
        return self._liveness.gateway_state

    @property
    def switch(self) -> SwitchMode:
        """What operators let this adapter do, whatever the state."""
        return self._liveness.switch

    @property
    def switches(self) -> tuple[SwitchInfo, ...]:
        """The switches behind it."""
        return self._switches.infos()

    @property
    def boot(self) -> bytes:
        """The boot id adopted; empty when there is none."""
        return self._liveness.boot

    @property
    def reconnects(self) -> int:
        """Registrations after the first."""
        return max(0, self._liveness.reconnects)

    @property
    def flaps(self) -> int:
        """Times the gateway stopped being healthy."""
        return self._liveness.flaps

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their reply."""
        return len(self._requests)

    def table_sizes(self) -> dict[str, int]:
        """Entries by table. The lock is held."""
        return {
            "requests": len(self._requests),
            "request_deadlines": self._requests.num_deadlines,
            "posted_calls": len(self._inbox),
        }

    def check_process(self) -> None:
        """Refuse to work in a forked child: the thread, the socket and the lock are the parent's.

        Raises:
            RuntimeError: this is not the process that made the adapter.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this adapter belongs to process {self._process} and cannot be used in process {os.getpid()}, "
                "which was forked from it: make a new adapter here"
            )

    def post(self, call: Callable[[], None], *, is_urgent: bool = True) -> None:
        """Let the link thread make this call soon; after the link has ended it is dropped.

        One that is not urgent wakes nobody and comes after all that are: it is made by the link thread, within
        ``LOCK_LOOK_SECONDS``.
        """
        with self.lock:
            if not self._has_ended:
                self._inbox.post(call, is_urgent=is_urgent)

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until the predicate holds, asking again at each change. Returns whether it does."""
        with self.changed:
            return self.changed.wait_for(predicate, max(0.0, timeout_seconds))

    @contextmanager
    def turn(self, timeout_seconds: float) -> Iterator[Callable[[Callable[[], bool], float], bool]]:
        """Take the link's turn, if it is to be had, and give what waits best now: its arguments are ``wait_for``'s.

        With the turn it waits by doing what the link thread does, else as ``wait_for``. Whoever has the turn must not
        linger with it outside of that: nobody else hears of anything.
        """
        if not self._turn.acquire(timeout=max(0.0, min(timeout_seconds, TURN_SECONDS))):
            yield self.wait_for
            return
        try:
            dealer = self._dealer
            if dealer is None or self._has_ended:
                yield self.wait_for
                return
            self._inbox.wake()
            try:
                with dealer.lent():
                    yield partial(self._work_until, dealer)
            finally:
                if not self._inbox.may_sleep() or dealer.has_input():
                    self._inbox.ring()
        finally:
            self._turn.release()

    def wait_healthy(self, timeout_seconds: float) -> bool:
        """Wait until work is accepted. Returns at once when the adapter is closed."""
        self.wait_for(lambda: self.state in (State.HEALTHY, State.CLOSED), timeout_seconds)
        return self.state is State.HEALTHY

    def drain(self, deadline: float) -> None:
        """An operator drains this adapter."""
        with self.lock:
            self._obey(self._liveness.drain(deadline))

    def resume(self) -> None:
        """An operator ends that drain."""
        with self.lock:
            self._obey(self._liveness.resume())

    def announce(self) -> None:
        """This half has something to register now: say it before anything that is posted later."""
        self.post(self._announce_late)

    def close(self, timeout_seconds: float) -> None:
        """Settle everything, leave the gateway, end the thread.

        While a copy runs the thread and the party's lock stay, however long; that is logged after ``timeout_seconds``.
        """
        with self.lock:
            for order in self._liveness.close(time.monotonic()):
                if isinstance(order, Settle):
                    self._half.settle(order.trigger)
            self.post(self._begin_leaving)
            self.changed.notify_all()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                self._log.warning("close_waits", reason="a copy still runs: the thread and its lock end with it")

    # -- the link thread -----------------------------------------------------------------------------------------------

    def ask(self, message: Request, deadline: float, finish: Finish) -> None:
        """Send a request; ``finish`` is called once, with the reply or the reason why there is none.

        Args:
            message: its number and boot are filled in.
            deadline: when to give up (monotonic). A granting request carries it too.
            finish: may be called before this returns.
        """
        if not self._liveness.is_registered:
            finish(_REASON_OF_STATE.get(self._liveness.state, Reason.NOT_HEALTHY))
            return
        self._send(message, self._liveness.boot, deadline, finish)

    def tell(self, message: Request) -> None:
        """Send a request whose reply does not matter. One that is lost is healed by a heartbeat."""
        if self._liveness.is_registered:
            self._send(message, self._liveness.boot, time.monotonic() + REPLY_SECONDS, _ignore)

    def _run(self) -> None:
        dealer = Dealer(self._socket_path, self._inbox.bell)
        with self._turn:
            self._dealer = dealer
            wake_at = self._round(dealer)
        while not self._may_end():
            dealer.sleep(wake_at)
            with self._turn:
                wake_at = self._round(dealer)
        with self._turn:
            self._leave(dealer)

    def _work_until(self, dealer: Dealer, predicate: Callable[[], bool], timeout_seconds: float) -> bool:
        """Do the link thread's work until the predicate holds, so long at most. Returns whether it does."""
        deadline = time.monotonic() + timeout_seconds

        def is_done() -> bool:
            with self.lock:
                return predicate()

        while not (has_ended := is_done()) and time.monotonic() < deadline:
            wake_at = self._round(dealer, is_done)
            if not is_done():
                dealer.wait(min(wake_at, deadline))
        return has_ended

    def _round(self, dealer: Dealer, is_done: Callable[[], bool] | None = None) -> float:
        """One turn of the loop. Returns until when to sleep before the next (monotonic).

        ``is_done``: a caller has the turn. What it does not wait for is left to the link thread, and so is all that
        remains when what came was what it waits for.
        """
        self._inbox.wake()
        try:
            self._receive()
            if is_done is not None and is_done():
                return 0.0
            self._make_posted_calls(only_urgent=is_done is not None and self._inbox.num_others < MAX_CALLS_LEFT)
            wake_at = self._tick(time.monotonic())
            has_more = is_done is None and self._inbox.num_others > 0
            return wake_at if self._inbox.may_sleep() and not dealer.has_input() and not has_more else 0.0
        except Exception:  # noqa: BLE001 - a fault of ours must not end the thread on which all clean-up depends
            self._log.exception("link_failed", reason="in one round; it goes on")
            return time.monotonic() + LOCK_LOOK_SECONDS

    def _tick(self, now: float) -> float:
        mode = self._switches.look(now)  # lists a directory: not while an engine's thread may wait for the lock
        with self.lock:
            self._obey(self._liveness.switched(mode, now + self._switches.drain_seconds))
            for finish in self._requests.take_expired(now):
                finish(Reason.NO_REPLY)
            self._look_at_pool(now)
            self._obey(self._liveness.tick(now, may_register=self._half.is_idle()))
            half_at = self._half.tick(now)
            said_at = self._liveness.next_due()
            wake_at = min(now + LOCK_LOOK_SECONDS, self._requests.next_deadline(), half_at)
            wake_at = min(wake_at, said_at) if said_at > now else wake_at
            return max(wake_at, now + 0.001)

    def _make_posted_calls(self, *, only_urgent: bool = False) -> None:
        # A posted call may hold the last reference to an event: nothing here may keep it once it was made.
        for _ in range(MAX_CALLS_A_ROUND):
            call = self._inbox.take(only_urgent=only_urgent)
            if call is None:
                return
            call()

    def _make_all_posted_calls(self) -> None:
        while not self._inbox.is_empty:
            self._make_posted_calls()

    def _look_at_pool(self, now: float) -> None:
        match self._pool.look(now, may_detach=self._half.is_idle()):
            case PoolSight.LOST:
                self._obey(self._liveness.pool_gone(now))
            case PoolSight.DAEMON_LIVES:
                self._obey(self._liveness.lock_seen(True, now))
            case PoolSight.DAEMON_GONE:
                self._obey(self._liveness.lock_seen(False, now))
                self._half.gateway_died(now)
            case PoolSight.FORMER_DAEMON_GONE:
                self._half.gateway_died(now)

    def _complain(self, reason: str) -> None:
        """Say why there is no connection: at once when the reason is another one, else ever more rarely."""
        self._log.warning("not_connected", reason=reason)

    # -- sending

    def _send(self, message: Request, boot: bytes, deadline: float, finish: Finish) -> None:
        if self._requests.is_full:
            finish(Reason.SEND_ERROR)
            return
        number = self._requests.open(boot, deadline, finish)
        try:
            frame = codec.encode(msgspec.structs.replace(message, number=number, boot=boot))
        except codec.WireError as error:
            self._log.error("not_sent", reason=str(error))
            reason = Reason.ENCODE_ERROR
        else:
            if self._dealer is not None and self._dealer.send(frame):
                return
            reason = Reason.SEND_ERROR
        self._requests.take(number)
        finish(reason)

    def _end_requests(self, reason: Reason) -> None:
        for finish in self._requests.take_all():
            finish(reason)

    # -- receiving

    def _receive(self) -> None:
        for _ in range(MAX_REPLIES_A_ROUND):
            frame = None if self._dealer is None else self._dealer.receive()
            if frame is None:
                return
            with self.lock:
                self._read(frame)

    def _read(self, frame: bytes) -> None:
        try:
            reply = codec.decode_reply(frame)
        except codec.WireError as error:
            finish = self._requests.take(error.number)
            if finish is None:
                self.late_replies += 1
            else:
                finish(Reason.BAD_REPLY)
            return
        now = time.monotonic()
        finish = self._requests.take(reply.number, reply.boot)
        if reply.boot == self._liveness.boot:
            self._liveness.heard(now)
        elif finish is None and self._liveness.boot:
            self._obey(self._answered_by_stranger(reply, now))
        if finish is None:
            self._ignore_late(reply, now)
            return
        if isinstance(reply, Error) and reply.code is ErrorCode.UNKNOWN_PARTY:
            self._obey(self._liveness.unknown(now))
        finish(reply)

    def _answered_by_stranger(self, reply: AnyReply, now: float) -> list[Order]:
        if isinstance(reply, Error) and reply.code is ErrorCode.WRONG_BOOT:
            return self._liveness.wrong_boot(now)
        return self._liveness.stranger()

    def _ignore_late(self, reply: AnyReply, now: float) -> None:
        self.late_replies += 1
        self._half.heard_late(reply)
        if isinstance(reply, Reserved | Readable | Found):  # a grant nobody waits for: a heartbeat gives it back
            self._liveness.ping_soon(now)

    # -- obeying the table

    def _obey(self, orders: Iterable[Order]) -> None:
        """Do what the table says. Engine threads come here only with orders that need neither socket nor requests."""
        before = self._seen_state
        for order in orders:
            match order:
                case Say(Message.HELLO):
                    self._say_hello()
                case Say(Message.REGISTER):
                    self._say_register()
                case Say(Message.PING):
                    self._say_ping()
                case Reconnect():
                    if self._dealer is not None:
                        self._dealer.disconnect()
                    self._end_requests(_REASON_OF_STATE.get(self._liveness.state, Reason.RESTARTED))
                case Settle(trigger):
                    self._half.settle(trigger)
                    self._end_requests(_REASON_OF_TRIGGER[trigger])
                case WindDown(trigger, deadline):
                    self._half.wind_down(trigger, deadline)
                case EndDrain():
                    self._half.end_drain()
        after = self._liveness.state
        if after is not before:
            self._seen_state = after
            self._log.info(f"gateway_{after}", before=str(before), run_dir=str(self._socket_path.parent))
            self.changed.notify_all()

    def _say_hello(self) -> None:
        now = time.monotonic()
        hello = Hello(
            number=0,
            oldest_version=OLDEST_PROTOCOL_VERSION,
            newest_version=PROTOCOL_VERSION,
            pool_format=POOL_FORMAT,
            monotonic=now,
            software=SOFTWARE,
        )
        self._send(hello, b"", now + REPLY_SECONDS, partial(self._heard_welcome, now))

    def _heard_welcome(self, said_at: float, reply: Reply | Reason) -> None:
        now = time.monotonic()
        match reply:
            case Welcome() if mismatch := _mismatch(reply, said_at, now):
                self._is_incompatible(now, mismatch)
            case Welcome():
                succeeds = self._is_successor(reply)
                self._welcome = reply
                self._obey(self._liveness.welcome(reply.boot, reply.state, now))
                if succeeds:
                    self._half.gateway_died(now)
            case Error(code=ErrorCode.INCOMPATIBLE):
                self._is_incompatible(now, reply.message)
            case _:
                self._liveness.hello_failed()
                self._complain_of_hello(reply)

    def _is_successor(self, welcome: Welcome) -> bool:
        """Whether another daemon than the one we registered with holds the lock on the pool we are attached to."""
        return (
            self._welcome is not None
            and self._pool.is_attached
            and welcome.pool_id == self._welcome.pool_id
            and bool(self._announced_to)
            and welcome.boot != self._announced_to
        )

    def _complain_of_hello(self, reply: Reply | Reason) -> None:
        match reply:
            case Error():
                self._complain(f"the gateway refuses HELLO: {reply.message} ({reply.code})")
            case Reason.BAD_REPLY:
                self._complain("the gateway answers HELLO with something that this version cannot read")
            case Reason.NO_REPLY:
                is_usable = access.may_use(self._socket_path, os.R_OK | os.W_OK)
                hint = "" if is_usable else f": {access.explain(self._socket_path)}"
                self._complain(f"the gateway does not answer HELLO at {self._socket_path}{hint}")

    def _is_incompatible(self, now: float, reason: str) -> None:
        self._complain(reason)
        self._obey(self._liveness.incompatible(now))

    def _say_register(self) -> None:
        now = time.monotonic()
        if self._welcome is None:
            return
        try:
            self._half.prepare(self._pool.path, self._welcome.pool_id)
        except PoolUnusableError as error:
            if error.is_lasting:
                self._is_incompatible(now, str(error))
            else:
                self._complain(str(error))
            return
        self._announce()

    def _announce(self) -> None:
        try:
            message = self._half.register_message(self.party)
        except PoolUnusableError as error:
            self._complain(str(error))
            self._obey(self._liveness.unknown(time.monotonic()))  # if this was not the REGISTER that is due, it is now
            return
        if message is None:  # the heartbeats are probes until there is something to register
            self._obey(self._liveness.registered(time.monotonic()))
        else:
            self._announced_to = self._liveness.boot
            self._send(message, self._liveness.boot, time.monotonic() + REPLY_SECONDS, self._heard_registered)

    def _announce_late(self) -> None:
        with self.lock:
            if self._liveness.is_registered and not self._is_announced:
                self._announce()

    @property
    def _is_announced(self) -> bool:
        return bool(self._announced_to) and self._announced_to == self._liveness.boot

    def _say_ping(self) -> None:
        ping = self._half.ping_message(self.party) if self._is_announced else Ping(number=0)
        finish = partial(self._heard_pong, ping, self._is_announced)
        self._send(ping, self._liveness.boot, time.monotonic() + REPLY_SECONDS, finish)

    def _heard_registered(self, reply: Reply | Reason) -> None:
        now = time.monotonic()
        match reply:
            case Done():
                self._obey(self._liveness.registered(now))
            case Error():
                self._complain(f"the gateway refuses this party: {reply.message} ({reply.code})")
                self._obey(self._liveness.not_registered(reply.code, reply.retry_after_ms / 1000, now))

    def _heard_pong(self, ping: Ping, was_announced: bool, reply: Reply | Reason) -> None:
        if isinstance(reply, Pong):
            now = time.monotonic()
            known = reply.known or not was_announced
            deadline = None if reply.drain is None else reply.drain.deadline
            self._switches.told(reply.switch)
            self._half.heard_pong(ping, reply)
            self._obey(self._liveness.pong(reply.state, reply.health, known=known, drain_deadline=deadline, now=now))

    # -- leaving

    def _begin_leaving(self) -> None:
        self._is_leaving = True
        with self.lock:
            self._end_requests(Reason.CLOSED)

    def _may_end(self) -> bool:
        with self.lock:
            return self._is_leaving and self._half.is_idle()

    def _leave(self, dealer: Dealer) -> None:
        """No copy runs and none will: say goodbye to a gateway that listens, then give everything up."""
        try:
            self._make_all_posted_calls()  # the ABORTs go before the UNREGISTER
            if self._is_announced and self._liveness.is_registered and self._pool.is_attached:
                self._say_goodbye(dealer)
        except Exception:  # noqa: BLE001 - what is held is given up all the same
            self._log.exception("left_without_goodbye")
        dealer.disconnect()
        with self.lock:
            self._has_ended = True
            self._make_all_posted_calls()
            self._inbox.close()
        self._half.release()
        self._pool.detach()
        dealer.close()

    def _say_goodbye(self, dealer: Dealer) -> None:
        heard = threading.Event()
        deadline = time.monotonic() + LEAVE_SECONDS
        self._say_ping()  # what ended since the last heartbeat is told, and counted, too
        self._send(Unregister(number=0, party=self.party), self._liveness.boot, deadline, lambda _: heard.set())
        while not heard.is_set() and time.monotonic() < deadline:
            wake_at = self._round(dealer)
            if not heard.is_set():
                dealer.wait(min(wake_at, deadline))


def _mismatch(welcome: Welcome, said_at: float, now: float) -> str:
    """Why this gateway and this adapter cannot work together, with the numbers of both; empty: they can.

    Args:
        welcome: its answer.
        said_at: when HELLO was said (monotonic).
        now: when it was answered.
    """
    if not OLDEST_PROTOCOL_VERSION <= welcome.version <= PROTOCOL_VERSION or welcome.pool_format != POOL_FORMAT:
        return (
            f"the gateway chose wire version {welcome.version} and has pool format {welcome.pool_format}, this adapter "
            f"speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION} and reads pool format {POOL_FORMAT}"
        )
    if not said_at - CLOCK_SLACK_SECONDS <= welcome.monotonic <= now + CLOCK_SLACK_SECONDS:
        # Every deadline that crosses the socket would mean another moment to each side.
        return (
            f"the gateway's CLOCK_MONOTONIC is {welcome.monotonic - now:+.0f} s off this process's: they run in "
            "different time namespaces and must run in one"
        )
    return ""


def _ignore(_: Reply | Reason) -> None:
    """The end of a request whose reply does not matter."""
