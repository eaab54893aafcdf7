"""``kvgate serve``: the one place where the daemon's parts are made and put together.

Owns: the order of start and stop, and why the process ends. Must not know: how any part works. Runs on the main thread;
the pool's memory is reserved on a worker thread, which touches nothing else.

The order of start matters: the pool file is locked (a second daemon is refused), then scanned, then the sockets are
bound: a second bind on a path silently steals its clients. Sockets answer while memory is still being reserved. It says
that it is ready when all of it serves, the admin process included.
"""

import contextlib
import faulthandler
import gc
import json
import logging
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import msgspec
import zmq

from gateway import __version__, run_dir
from gateway.access import explain
from gateway.audit import AuditLog
from gateway.child import AdminChild
from gateway.chores import Chores
from gateway.config import GatewayConfig, as_mapping, to_environ
from gateway.core.core import Core
from gateway.core.types import CoreConfig
from gateway.device.copy import catch_lost_memory
from gateway.device.devices import open_device
from gateway.device.host import HostDevice
from gateway.device.passing import Inlet
from gateway.endpoint import Endpoint
from gateway.engines import EngineStats
from gateway.handles.desk import Desk
from gateway.health import HealthChecks
from gateway.housekeeping import Housekeeping
from gateway.listener import ListenError, listen
from gateway.lock import LockHeldError, LockObserver
from gateway.log import configure
from gateway.loop import Loop
from gateway.pool.file import PoolFile
from gateway.pool.mapping import PoolMapping
from gateway.pool.memory import PoolSpaceError
from gateway.pool_writer import PoolWriter
from gateway.run_dir import RunDirectory, StartError
from gateway.service import Service
from gateway.snapshot import SnapshotSource, StartProgress
from gateway.switchboard import Switchboard
from gateway.traffic import Traffic
from gateway.wakeup import Wakeup
from gateway.wire.codes import Lifecycle, SwitchMode, TransferMode

_log = logging.getLogger("kvgate.daemon")

_LOCK_POLL_SECONDS = 0.05
_TICK_SECONDS = 0.1
_SLOW_TICK_SECONDS = 0.5
#: A check that did not run for so long has failed.
_MAX_AGE_SECONDS = 5.0
#: How long the ready line waits for the admin process to say where it listens.
_ADMIN_START_SECONDS = 30.0
#: How long a port may still be held by the admin process of a daemon that was killed: its grace, and some.
_OLD_LISTENER_SECONDS = 4.0
_MAX_OPEN_FILES = 65536
_LONGEST_GRACE_SECONDS = 2.0
#: What the admin process must not read again: its settings come ready-made.
_NOT_FOR_THE_CHILD = ("KVGATE_CONFIG",)


class _StopRequestedError(Exception):
    """A signal came before there was anything to stop."""


def run(settings: GatewayConfig) -> int:
    """Serve until told to stop; the exit code: 0 after a stop by signal or drain, 1 when it could not serve."""
    configure(settings.log_level, settings.log_format)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    catch_lost_memory()
    if settings.unknown_variables:
        _log.warning("unknown_variables", extra={"facts": {"names": settings.unknown_variables}})
    try:
        with contextlib.ExitStack() as stack:
            return _start(settings, stack).serve()
    except StartError as error:
        _log.error("start_failed", extra={"facts": {"reason": str(error)}})
        return 1
    except _StopRequestedError:
        return 0
    except Exception:  # noqa: BLE001 - the last line of a daemon's life is for its operator
        _log.exception("failed")
        return 1
    finally:
        faulthandler.unregister(signal.SIGUSR2)


def _start(settings: GatewayConfig, stack: contextlib.ExitStack) -> "Daemon":
    """Make everything in order; ``stack`` takes it down again in the opposite one."""
    _raise_file_limit()
    wakeup = stack.enter_context(Wakeup((signal.SIGTERM, signal.SIGINT)))
    directory = stack.enter_context(_directory(settings))
    for note in directory.notes:
        _log.warning("run_dir_note", extra={"facts": {"note": note}})
    pool = stack.enter_context(_pool(settings, directory, wakeup))
    stack.callback(directory.withdraw)
    _see_that_addresses_are_free(settings, wakeup)
    locks = stack.enter_context(contextlib.closing(LockObserver.open(pool.path)))
    # The tables of a large pool are millions of objects that all stay: looking for garbage among them is time lost.
    gc.disable()
    daemon = Daemon(settings, directory, pool, locks, wakeup, inlet=_inlet(directory, stack))
    gc.freeze()
    gc.enable()
    for note in pool.notes:
        _log.info("pool_note", extra={"facts": {"note": note}})
    pool.discard_set_aside()  # its memory may be needed for the new pool
    directory.write_facts(daemon.boot)
    directory.write_settings(as_mapping(settings))
    context = stack.enter_context(zmq.Context(io_threads=1))
    mode, gid = directory.file_mode, directory.gid
    for path, is_admin in ((directory.socket, False), (directory.admin_socket, True)):
        try:
            endpoint = Endpoint(
                context, path, is_admin=is_admin, mode=0o600 if is_admin else mode, gid=-1 if is_admin else gid
            )
        except OSError as error:
            raise StartError(f"cannot bind {path}: {error.strerror}") from None
        daemon.listen(stack.enter_context(endpoint))
    directory.admin_facts.unlink(missing_ok=True)
    stack.callback(daemon.child.stop)
    return daemon


@contextlib.contextmanager
def _directory(settings: GatewayConfig) -> Iterator[RunDirectory]:
    """Both directories; a start that fails takes away what it made."""
    directory = run_dir.take(settings)
    try:
        yield directory
    except StartError:
        directory.undo()
        raise
    finally:
        directory.remove()


def _inlet(directory: RunDirectory, stack: contextlib.ExitStack) -> Inlet:
    """Where the files of engines' memory arrive; and the place for events.

    Raises:
        StartError: one cannot be made.
    """
    directory.make_events()
    try:
        return stack.enter_context(
            contextlib.closing(Inlet(directory.handles, mode=directory.file_mode, gid=directory.gid))
        )
    except OSError as error:
        raise StartError(f"cannot bind {directory.handles}: {error.strerror}") from None


@contextlib.contextmanager
def _pool(settings: GatewayConfig, directory: RunDirectory, wakeup: Wakeup) -> Iterator[PoolFile]:
    """The pool file, locked; closed at the end, and removed where nobody is to find it again."""
    pool = _open_pool(settings, directory, wakeup)
    is_kept = not directory.is_temporary and settings.pool_on_stop == "keep"
    try:
        yield pool
    except StartError:
        is_kept = not pool.is_new  # nothing is in one that was made for this start
        raise
    finally:
        if not is_kept:
            pool.remove()
        pool.close()


def _open_pool(settings: GatewayConfig, directory: RunDirectory, wakeup: Wakeup) -> PoolFile:
    """Open the pool file, waiting for another daemon to leave it as long as the settings say.

    Raises:
        StartError: another daemon stays, or the file cannot be used.
    """
    deadline = time.monotonic() + settings.start_lock_wait_seconds
    has_told = False
    while True:
        try:
            return PoolFile.open(
                directory.pool,
                data_bytes=settings.pool_size,
                slab_bytes=settings.slab_size,
                min_slot_bytes=settings.min_chunk_bytes,
                file_mode=directory.file_mode,
                group=None if directory.gid == -1 else directory.gid,
            )
        except LockHeldError:
            holder = directory.holder()
        except PermissionError as error:
            raise StartError(
                f"cannot open the pool {directory.pool}: {error.strerror}; {explain(directory.pool)}"
            ) from None
        except OSError as error:
            raise StartError(f"cannot open the pool {directory.pool}: {error.strerror or error}") from None
        except (ValueError, PoolSpaceError) as error:
            raise StartError(f"cannot open the pool {directory.pool}: {error}") from None
        if time.monotonic() >= deadline:
            waited = f"waited {settings.start_lock_wait_seconds:g} s"
            raise StartError(f"{holder}; {waited}: stop it first, or use another run_dir")
        if not has_told:
            facts = {"reason": holder, "seconds_at_most": settings.start_lock_wait_seconds}
            _log.warning("waiting_for_another_daemon", extra={"facts": facts})
            has_told = True
        if wakeup.wait(_LOCK_POLL_SECONDS) and wakeup.take()[0]:
            raise _StopRequestedError


def _see_that_addresses_are_free(settings: GatewayConfig, wakeup: Wakeup) -> None:
    """Refuse the start before anything is served; the admin process takes the addresses later.

    The admin process of a daemon that was killed lives a moment longer than the lock on its pool.

    Raises:
        StartError: one cannot be listened on.
    """
    if settings.admin and settings.admin == settings.probe and not settings.admin.endswith(":0"):
        raise StartError(f"admin and probe are both {settings.admin}, expected two addresses")
    deadline = time.monotonic() + _OLD_LISTENER_SECONDS
    has_told = False
    for setting in ("admin", "probe"):
        while address := getattr(settings, setting):
            try:
                listen(setting, address).close()
                break
            except ListenError as error:
                if not error.is_taken or time.monotonic() >= deadline:
                    raise StartError(str(error)) from None
            if not has_told:
                reason = "another process listens there: of a daemon that was killed it leaves by itself"
                facts = {"setting": setting, "address": address, "reason": reason}
                _log.warning(
                    "waiting_for_address", extra={"facts": {**facts, "seconds_at_most": _OLD_LISTENER_SECONDS}}
                )
                has_told = True
            if wakeup.wait(_LOCK_POLL_SECONDS) and wakeup.take()[0]:
                raise _StopRequestedError


class Daemon:
    """One boot: tables, chores and the admin process, over an open pool file."""

    def __init__(
        self,
        settings: GatewayConfig,
        directory: RunDirectory,
        pool: PoolFile,
        locks: LockObserver,
        wakeup: Wakeup,
        *,
        inlet: Inlet,
    ) -> None:
        """Build the tables from the pool's scan; nothing is bound or started yet."""
        now, wall = time.monotonic(), time.time()
        self.boot = secrets.token_bytes(16)
        self.child = AdminChild(_child_environ(settings, directory), directory.path)
        self._settings = settings
        self._directory = directory
        self._pool = pool
        self._wakeup = wakeup
        self._endpoints: list[Endpoint] = []
        #: Why it cannot become ready; empty while it can.
        self._failure = ""
        self._has_announced = False
        self._announce_by = now + _ADMIN_START_SECONDS

        writer = PoolWriter(pool)
        core_config = CoreConfig(
            lease_seconds=settings.lease_seconds,
            reservation_seconds=settings.reservation_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
            max_reserved_fraction=settings.max_reserved_fraction,
            drain_deadline_seconds=settings.drain_deadline_seconds,
            stop_deadline_seconds=settings.stop_deadline_seconds,
            eviction_policy=settings.eviction_policy,
        )
        self._core = Core(core_config, boot=self.boot, now=now, wall=wall)
        recovered = self._core.open_pool(writer.facts(), writer.found(), writer.namespaces(), now)
        writer.apply(self._core.take_effects())
        self._progress = StartProgress(recovered_chunks=recovered)

        self._desk = Desk(
            self._core,
            mode=TransferMode(settings.transfer),
            write=partial(_write, self._core, writer),
            open_device=partial(open_device, run_dir=directory.path, inlet=inlet),
            host=HostDevice(directory.path, inlet),
            open_mapping=partial(PoolMapping.open, pool.path),
            post=wakeup.post,
            clock=time.monotonic,
            wall=time.time,
        )
        engines = EngineStats(settings.heartbeat_seconds)
        self._checks = HealthChecks()
        self._traffic = Traffic()
        audit = AuditLog()
        switches = Switchboard(directory.path, SwitchMode(settings.switch), self._core, audit)
        snapshots = SnapshotSource(
            core=self._core,
            engines=engines,
            checks=self._checks,
            traffic=self._traffic,
            switches=switches,
            audit=audit,
            progress=self._progress,
            boot=self.boot,
            started_at=wall,
            run_dir=str(directory.path),
            allocated_bytes=pool.allocated_bytes,
            desk=self._desk,
        )
        self._service = Service(
            core=self._core,
            config=core_config,
            pool=writer,
            locks=locks,
            engines=engines,
            checks=self._checks,
            traffic=self._traffic,
            switches=switches,
            audit=audit,
            snapshots=snapshots,
            desk=self._desk,
            verify=os.environ.get("KVGATE_VERIFY") == "1",
        )
        self._housekeeping = Housekeeping(self._checks, _TICK_SECONDS)
        self._add_chores(Chores(self._core, engines, locks, pool, writer, self._desk, directory.path), now, switches)

    def listen(self, endpoint: Endpoint) -> None:
        """Serve this socket too. Before ``serve``."""
        self._endpoints.append(endpoint)

    def serve(self) -> int:
        """Answer until the lifecycle says stop; the exit code.

        Raises:
            StartError: it could not become ready.
        """
        self.child.start(time.monotonic())
        loop = Loop(
            endpoints=self._endpoints,
            wakeup=self._wakeup,
            answers=self._service,
            housework=self._housekeeping,
            checks=self._checks,
            traffic=self._traffic,
            on_signal=self._on_signal,
            grace_seconds=min(self._settings.heartbeat_seconds, _LONGEST_GRACE_SECONDS),
        )
        cancelled = threading.Event()
        reserving = threading.Thread(target=self._reserve_memory, args=(cancelled,), name="reserve-memory")
        reserving.start()
        try:
            loop.run(self._is_over)
        finally:
            cancelled.set()
            reserving.join()
            self._desk.close()
        if self._failure:
            raise StartError(self._failure)
        self._log_end()
        return 0

    def _add_chores(self, chores: Chores, now: float, switches: Switchboard) -> None:
        for check, step, every_seconds, is_critical in (
            ("loop", chores.pass_time, _TICK_SECONDS, True),
            ("reaper", chores.find_dead, _TICK_SECONDS, True),
            ("copies", chores.move_copies, _TICK_SECONDS, False),
            ("events", chores.sweep_events, _SLOW_TICK_SECONDS, False),
            ("pool", chores.check_pool, _SLOW_TICK_SECONDS, True),
            ("admin", self._look_after_child, _TICK_SECONDS, False),
            ("quarantine", chores.check_quarantine, _SLOW_TICK_SECONDS, False),
            ("old_pools", chores.discard_old_pools, _SLOW_TICK_SECONDS, False),
            ("switches", switches.refresh, _SLOW_TICK_SECONDS, False),
        ):
            self._housekeeping.add(
                check,
                step,
                every_seconds=every_seconds,
                max_age_seconds=_MAX_AGE_SECONDS,
                is_critical=is_critical,
                now=now,
            )

    # -- start

    def _reserve_memory(self, cancelled: threading.Event) -> None:
        """On a worker thread: reserve every page of the pool, and tell the loop."""
        try:
            self._pool.reserve_memory(self._post_progress, cancelled.is_set)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            reason = f"cannot reserve the pool's memory: {error}"
            self._wakeup.post(lambda: self._fail(reason))
        else:
            self._wakeup.post(self._note_reserved)

    def _post_progress(self, share: float) -> None:
        self._wakeup.post(lambda: self._note_progress(share))

    def _note_progress(self, share: float) -> None:
        self._progress.share = share

    def _note_reserved(self) -> None:
        self._progress.share = 1.0
        self._progress.is_reserving = False
        if self._core.state is Lifecycle.STARTING:
            self._core.init_done(time.monotonic())

    def _look_after_child(self, now: float) -> str:
        """Say that we are ready once the admin process listens; restart it when it dies later."""
        if self._has_announced:
            return self.child.tick(now)
        exit_code = self.child.exit_code
        if exit_code is not None:
            self._fail(f"the admin process could not start, it exited with {exit_code}: its own lines say why")
        elif self._core.state is Lifecycle.READY:
            url = self._admin_url()
            if url is not None or now > self._announce_by:
                self._announce(url)
        return ""

    def _admin_url(self) -> str | None:
        """Where the admin process listens; None while it does not say so."""
        try:
            facts = json.loads(self._directory.admin_facts.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        url = facts.get("url") if isinstance(facts, dict) else None
        return url if isinstance(url, str) else None

    def _announce(self, url: str | None) -> None:
        """Say that all of it serves: in the log, and in the one line that goes to stdout."""
        facts = {
            "version": __version__,
            "boot_id": self.boot.hex(),
            "recovered_chunks": self._progress.recovered_chunks,
            "admin_url": url,
        }
        _log.info("ready", extra={"facts": facts})
        line = {
            "event": "ready",
            "admin_url": url,
            "socket": str(self._directory.socket),
            "pool": str(self._directory.pool),
            "run_dir": str(self._directory.path),
            "boot_id": self.boot.hex(),
            "pid": os.getpid(),
        }
        with contextlib.suppress(OSError):  # nobody reads: no reason to stop
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        self._has_announced = True

    # -- end

    def _on_signal(self, number: int) -> None:
        _log.info("signal", extra={"facts": {"signal": signal.Signals(number).name, "state": self._core.state}})
        self._core.stop_signal(time.monotonic(), time.time())

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def _is_over(self) -> bool:
        return bool(self._failure) or self._core.state in (Lifecycle.STOPPING, Lifecycle.STOPPED)

    def _log_end(self) -> None:
        drain = self._core.drain_record()
        facts: dict[str, object] = {"boot_id": self.boot.hex()}
        if drain is not None:
            facts |= {"outcome": drain.outcome, "operations_done": drain.done, "operations_cut": drain.aborted}
        _log.info("stopped", extra={"facts": facts})


def _child_environ(settings: GatewayConfig, directory: RunDirectory) -> dict[str, str]:
    """The environment of the admin process: ours, with every setting as it is in force here."""
    resolved = msgspec.structs.replace(settings, run_dir=str(directory.path), admin_dir=str(directory.admin_path))
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_CHILD}
    return inherited | to_environ(resolved)


def _raise_file_limit() -> None:
    """Every engine process costs a descriptor: allow as many as the system lets us, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _write(core: Core, writer: PoolWriter) -> None:
    """Bring what a step of the core decided into the pool file."""
    writer.apply(core.take_effects())
    if os.environ.get("KVGATE_VERIFY") == "1":
        core.check()
