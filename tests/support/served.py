"""A service over a real core and a real pool file, with the clock in the test's hand."""

from pathlib import Path

import msgspec

from gateway.audit import AuditLog
from gateway.core.core import Core
from gateway.core.types import CoreConfig
from gateway.device.devices import open_device
from gateway.device.host import HostDevice
from gateway.engines import EngineStats
from gateway.handles.desk import Desk
from gateway.health import HealthChecks
from gateway.lock import LockObserver
from gateway.pool.file import PoolFile
from gateway.pool.mapping import PoolMapping
from gateway.pool_writer import PoolWriter
from gateway.service import Service
from gateway.snapshot import SnapshotSource, StartProgress
from gateway.switchboard import Switchboard
from gateway.traffic import Traffic
from gateway.wire import codec
from gateway.wire.codes import ErrorCode, SwitchMode, TransferMode
from gateway.wire.messages import AnyReply, Error, Request

BOOT = b"b" * 16
START = 1000.0


class Served:
    """A service with everything it needs; ``now`` is its clock."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        self.pool = PoolFile.open(directory / "pool", data_bytes=1 << 20, slab_bytes=256 << 10, min_slot_bytes=4096)
        self.locks = LockObserver.open(self.pool.path)
        self.core = Core(CoreConfig(), boot=BOOT, now=START, wall=0.0)
        writer = PoolWriter(self.pool)
        self.core.open_pool(writer.facts(), writer.found(), writer.namespaces(), START)
        self.traffic = Traffic()
        checks = HealthChecks()
        checks.add("loop", is_critical=True, max_age_seconds=1e9, now=START)
        engines, audit = EngineStats(1.0), AuditLog()
        switches = Switchboard(directory, SwitchMode.ON, self.core, audit)
        self.progress = StartProgress(share=0.25)
        desk = Desk(
            self.core,
            mode=TransferMode.AUTO,
            write=lambda: writer.apply(self.core.take_effects()),
            open_device=lambda name: open_device(name, directory),
            host=HostDevice(directory),
            open_mapping=lambda: PoolMapping.open(self.pool.path),
            post=lambda step: step(),
            clock=lambda: self.now,
            wall=lambda: 0.0,
        )
        self.service = Service(
            core=self.core,
            config=CoreConfig(),
            pool=writer,
            locks=self.locks,
            engines=engines,
            checks=checks,
            traffic=self.traffic,
            audit=audit,
            switches=switches,
            snapshots=SnapshotSource(
                core=self.core,
                engines=engines,
                checks=checks,
                traffic=self.traffic,
                switches=switches,
                audit=audit,
                progress=self.progress,
                boot=BOOT,
                started_at=0.0,
                run_dir=str(directory),
                allocated_bytes=self.pool.allocated_bytes,
                desk=desk,
            ),
            desk=desk,
            verify=True,
            monotonic=lambda: self.now,
            wall=lambda: 0.0,
        )

    def ask(self, request: Request, *, is_admin: bool = True) -> AnyReply:
        frame = codec.encode(msgspec.structs.replace(request, number=5, boot=request.boot or BOOT))
        later: list[bytes] = []
        answer = self.service.answer(frame, is_admin=is_admin, later=later.append)
        reply = codec.decode_reply(answer or later.pop())
        assert reply.number == 5
        assert reply.boot == BOOT
        return reply

    def code(self, request: Request, *, is_admin: bool = True) -> ErrorCode | None:
        reply = self.ask(request, is_admin=is_admin)
        return reply.code if isinstance(reply, Error) else None

    def counted(self, *labels: str) -> float:
        return sum(s.value for s in self.traffic.counters() if s.name == "requests" and s.labels == labels)

    def close(self) -> None:
        """Let its files go."""
        self.locks.close()
        self.pool.close()
