"""An engine's view of the pool file: headers to read, data to read and write.

Owns: the two mappings and how a header is read while the daemon may be writing it. Must not know: leases, messages.
The engine's copy threads and its link thread use one mapping at a time each or together: nothing here changes after
``open``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path
from typing import Self

import numpy as np

from gateway.lock import Inode
from gateway.pool.format import (
    HEADER_PAGES_BYTES,
    SLOT_HEADER_BYTES,
    Layout,
    PoolFormatError,
    SlotHeader,
    SlotState,
    decode_pages,
    decode_slot,
)
from gateway.wire.messages import POOL_FORMAT

_READS = 4  # of a header that changes under us; a writer needs well under a microsecond
_MADV_POPULATE_READ = 22  # of linux/mman.h


class PoolMapping:
    """One pool file, mapped. It never shrinks and is never laid out anew, so no access can fail while this is open.

    A party takes its proof-of-death lock on ``inode`` before it asks for anything, and gives it up after ``close``.
    """

    def __init__(self, path: Path, fd: int, layout: Layout, pool_id: bytes) -> None:
        self.pool_id = pool_id
        self.pool_format = POOL_FORMAT
        self.layout = layout
        self.data_bytes = layout.data_bytes
        status = os.fstat(fd)
        self.inode: Inode = (status.st_dev, status.st_ino)
        self._path = path
        self._headers = mmap.mmap(fd, layout.data_offset, prot=mmap.PROT_READ)
        try:
            self._data = mmap.mmap(fd, layout.data_bytes, offset=layout.data_offset)
        except BaseException:
            self._headers.close()
            raise
        #: Address of the data's first byte in this process, good until ``close``.
        self.data_address: int = np.frombuffer(self._data, np.uint8).ctypes.data

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map the pool file that ``path`` names now.

        Raises:
            PoolFormatError: the file is no pool of the format this version reads; the message has both numbers.
            OSError: it cannot be opened for reading and writing, or not be mapped.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            page = decode_pages(os.pread(fd, HEADER_PAGES_BYTES, 0))
            size = os.fstat(fd).st_size
            if size != page.layout.file_bytes:
                raise PoolFormatError(f"{os.fspath(path)} has {size} bytes, its header says {page.layout.file_bytes}")
            return cls(Path(path), fd, page.layout, page.pool_id)
        finally:
            os.close(fd)  # a mapping keeps a descriptor of its own

    def read_header(self, slot: int) -> SlotHeader | None:
        """The header of ``slot`` as it stands; None: free, torn, or changing faster than it can be read.

        Raises:
            IndexError: there is no such slot.
        """
        start = self.layout.header_offset(slot)
        previous = b""
        for _ in range(_READS):
            record = self._headers[start : start + SLOT_HEADER_BYTES]
            header = decode_slot(record, slot)
            if header is not None or record == previous:
                return header
            previous = record
        return None

    def holds(self, slot: int, key: bytes, generation: int) -> bool:
        """Whether ``slot`` is READY and still what was granted: asked after a copy, no writer had it meanwhile.

        Bytes are copied first, then ``acquire_fence``, then this: a lease protects only while its daemon lives.
        """
        header = self.read_header(slot)
        return (
            header is not None
            and header.state is SlotState.READY
            and header.key == key
            and header.generation == generation
        )

    def is_current(self) -> bool:
        """Whether the path still names the mapped file; False: open it again."""
        try:
            status = self._path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.inode

    def prefault(self, offset: int, nbytes: int) -> None:
        """Have the kernel enter these bytes of the data into this process's page tables.

        Without it the first copy to each page does so, at a third of its speed or less. Page tables are each process's
        own, so the daemon's reservation does not help. Reading suffices: the kernel enters pages of a shared mapping as
        writable. It takes 0.15 s a GiB, and five times as long where no process has touched the memory yet.

        The interpreter's lock is released, but the process can map and unmap nothing meanwhile: a few MiB at a time.

        Args:
            offset: of the data, a multiple of the page size.
            nbytes: what goes beyond the end of the data is ignored.

        Raises:
            OSError: the kernel cannot (Linux before 5.14).
            ValueError: the mapping is closed.
        """
        if self._data.closed:
            raise ValueError("the mapping is closed")
        nbytes = min(nbytes, self.data_bytes - offset)
        if nbytes <= 0:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(self.data_address + offset), ctypes.c_size_t(nbytes)
        if libc.madvise(address, length, _MADV_POPULATE_READ):
            raise OSError(ctypes.get_errno(), f"cannot prefault: {os.strerror(ctypes.get_errno())}")

    def data(self, offset: int, nbytes: int) -> memoryview:
        """Bytes of the pool from ``offset`` of the data on, writable. Release it before ``close``.

        Raises:
            ValueError: outside of the data.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.data_bytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a pool of {self.data_bytes}")
        return memoryview(self._data)[offset : offset + nbytes]

    def close(self) -> None:
        """Unmap. No copy may be running.

        Raises:
            BufferError: a view from ``data`` is alive; the mapping stays open.
        """
        self._data.close()
        self._headers.close()


def acquire_fence() -> None:
    """Order a reader's copy before its second look at the header, on processors that would swap them.

    Taking a lock is the one acquire operation Python has.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
