"""The CPU as a device: KV caches in shared memory, events in files, copies by this process.

Owns: how a tensor's memory is shared with another process and opened there. Must not know: messages, who copies when.
Any thread, but for the inlet, which is the loop's.

A tensor of PyTorch lies in a *storage*; ``share_memory_()`` moves that to shared memory in place, and every view of it
follows. Sharing goes by the open file (``passing``), not by a name: nothing of it is left behind by a killed process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self, cast

import numpy as np

from gateway.device.base import BlockCopier, DeviceError, ExportedMemory
from gateway.device.copy import ChunkCopier, Region
from gateway.device.host_event import HostEvent, OpenedHostEvent
from gateway.device.passing import TOKEN_BYTES, Inlet


class _Storage(Protocol):
    """What is asked of ``torch.UntypedStorage``."""

    def is_shared(self) -> bool: ...
    def share_memory_(self) -> object: ...
    def data_ptr(self) -> int: ...
    def nbytes(self) -> int: ...
    def _share_fd_cpu_(self) -> tuple[int, int]: ...


class HostMemory(mmap.mmap):
    """Shared memory of this process's own, zeroed; it cannot shrink under those who map it."""

    _fd = -1

    @classmethod
    def make(cls, nbytes: int) -> Self:
        """Memory of this size."""
        fd = os.memfd_create("kvgate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        memory._fd = fd
        return memory

    def export(self) -> ExportedMemory:
        """What another process opens it with."""
        address = np.frombuffer(self, np.uint8).ctypes.data
        return ExportedMemory(secrets.token_bytes(TOKEN_BYTES), address, len(self), self._fd)

    def close(self) -> None:
        """Unmap it here; who has opened it keeps it.

        Raises:
            BufferError: a view of it is alive; it stays open.
        """
        super().close()
        self._close_fd()

    def __del__(self) -> None:
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OpenedHostMemory:
    """Memory of another process, mapped here until ``close``."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = mmap.mmap(fd, nbytes)
        #: Of its first byte, here.
        self.address: int = np.frombuffer(self._map, np.uint8).ctypes.data

    def check(self) -> None:
        """See that all of it is there, for an error that says more than that of a copy which touches what is not.

        Raises:
            DeviceError: its owner has made it smaller.
        """
        if (size := self._map.size()) < len(self._map):
            raise DeviceError(f"memory of {len(self._map)} bytes was shrunk to {size}")

    def view(self) -> memoryview:
        """Its bytes. Release it before ``close``."""
        return memoryview(self._map)

    def close(self) -> None:
        """Unmap it. No copy may be running."""
        self._map.close()


class HostDevice:
    """The CPU, of an engine or of the gateway.

    Args:
        run_dir: the gateway's shared directory, in which events lie.
        inlet: where memory arrives; None: nothing is opened here.
    """

    name = "cpu"
    outlives_process = False

    def __init__(self, run_dir: str | os.PathLike[str], inlet: Inlet | None = None) -> None:
        self._run_dir = Path(run_dir)
        self._inlet = inlet

    def receive(self) -> None:
        """Take in memory that has arrived, so that the inlet does not fill; what nobody asks for is closed in time."""
        if self._inlet is not None:
            self._inlet.receive()

    def export_memory(self, tensors: Iterable[object]) -> list[ExportedMemory]:
        """The storages of these tensors, which must be in shared memory; see ``share``.

        Raises:
            DeviceError: one is not, or cannot be passed on.
        """
        exported: dict[int, ExportedMemory] = {}
        for tensor in tensors:
            storage = _storage(tensor)
            if storage.data_ptr() in exported:
                continue
            if not storage.is_shared():
                raise DeviceError("the KV cache is not in shared memory: call share_memory_() on its tensors")
            try:
                fd, nbytes = storage._share_fd_cpu_()
            except RuntimeError as error:
                raise DeviceError(f"the KV cache's shared memory cannot be passed on: {error}") from None
            handle = secrets.token_bytes(TOKEN_BYTES)
            exported[storage.data_ptr()] = ExportedMemory(handle, storage.data_ptr(), nbytes, fd)
        return list(exported.values())

    def open_memory(self, handle: bytes, nbytes: int, *, is_sealed: bool = False) -> OpenedHostMemory:
        """Map memory that came through the inlet; ``is_sealed``: only if nobody can shrink it, as ``HostMemory``.

        Raises:
            DeviceError: none came under this handle, it is smaller than ``nbytes``, it could shrink, or it cannot be
                mapped.
        """
        if self._inlet is None:
            raise DeviceError("this process opens no memory")
        fd = self._inlet.take(handle)
        try:
            size = os.fstat(fd).st_size
            if not 0 < nbytes <= size:
                raise DeviceError(f"memory of {nbytes} bytes was announced, {size} came")
            if is_sealed and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise DeviceError(f"memory of {nbytes} bytes is not sealed against shrinking (F_SEAL_SHRINK)")
            return OpenedHostMemory(fd, nbytes)
        except (OSError, ValueError) as error:
            raise DeviceError(f"memory of {nbytes} bytes cannot be mapped: {error}") from None
        finally:
            os.close(fd)  # a mapping keeps a descriptor of its own

    def record_event(self) -> HostEvent:
        """An event that has fired: what this process copied before is done."""
        event = HostEvent(self._run_dir)
        event.record()
        return event

    def open_event(self, handle: bytes) -> OpenedHostEvent:
        """Open another process's event.

        Raises:
            DeviceError: its producer has dropped it, or it never was one.
        """
        return OpenedHostEvent.open(self._run_dir, handle)

    def copier(self, regions: Sequence[Region], num_blocks: int) -> BlockCopier:
        """The CPU's own copies."""
        return ChunkCopier(regions, num_blocks)

    def pin(self, address: int, nbytes: int) -> None:
        """The CPU reaches all memory."""


def share(tensors: Iterable[object]) -> None:
    """Move the storages of these tensors to shared memory, in place: one to three seconds a GiB.

    Raises:
        DeviceError: one is not PyTorch's, or there is no memory for it.
    """
    for tensor in tensors:
        try:
            _storage(tensor).share_memory_()
        except (RuntimeError, OSError) as error:
            raise DeviceError(f"the KV cache cannot be moved to shared memory: {error}") from None


def _storage(tensor: object) -> _Storage:
    storage = getattr(tensor, "untyped_storage", None)
    if not callable(storage):
        raise DeviceError(f"a KV cache of {type(tensor).__name__} cannot be shared: expected tensors of PyTorch")
    return cast("_Storage", storage())
