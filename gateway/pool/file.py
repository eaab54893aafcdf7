"""The pool file, as the one daemon that owns it sees it.

Owns: every write to header page, namespace table and slot headers, and what a warm start finds in them. Must not
know: what a slot's bytes mean, who may have which slot. Runs on the loop thread; ``reserve_memory`` alone runs on a
worker thread.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from gateway.lock import DeathLock
from gateway.pool import memory
from gateway.pool.claim import PoolClaim
from gateway.pool.format import (
    HEADER_PAGES_BYTES,
    NAMESPACE_ENTRIES,
    NAMESPACE_ENTRY_BYTES,
    NAMESPACE_OFFSET,
    SLOT_HEADER_BYTES,
    SLOT_HEADERS_OFFSET,
    HeaderPage,
    Layout,
    NamespaceEntry,
    PoolFormatError,
    SlotHeader,
    decode_namespace,
    decode_pages,
    encode_namespace,
    encode_page,
    encode_slot,
    page_offset,
)
from gateway.pool.scan import FoundHeaders, scan_headers

_DISCARD_BYTES = 128 << 20  # of memory freed on the loop's thread in one go


class PoolFile:
    """The file, claimed and locked for this daemon until ``close`` or the end of the process.

    Its data is not mapped here: engines copy, the daemon keeps the books.
    """

    def __init__(self, path: Path, claim: PoolClaim, fd: int, page: HeaderPage, notes: list[str]) -> None:
        self.path = path
        #: One line a decision that an operator may want to know of.
        self.notes = notes
        self._claim = claim
        self._fd = fd
        self._page = page
        self._headers = mmap.mmap(fd, page.layout.data_offset)
        #: Entry and place in the table of each namespace, the one written longest ago first.
        self._namespaces: dict[bytes, tuple[NamespaceEntry, int]] = {}
        self._namespace_sequence = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        data_bytes: int,
        slab_bytes: int,
        min_slot_bytes: int,
        file_mode: int = 0o600,
        group: int | None = None,
    ) -> Self:
        """Claim the pool file at ``path``, take the daemon's lock on it, and begin a new boot.

        A file of the wanted layout is kept with all it holds. Any other (another size, another format, garbage) is
        set aside, and a new, empty file gets its name: a cold start, and a line in ``notes``.

        Args:
            path: where the file is or will be; its directory must exist.
            data_bytes: of all slabs; what is beyond the last whole slab is not used.
            slab_bytes: of one slab.
            min_slot_bytes: slot sizes are multiples of it.
            file_mode: the file's permissions, whatever the umask.
            group: the file's owning group id; None: as it is.

        Raises:
            LockHeldError: another daemon has claimed it. Nothing changed.
            ValueError: the sizes do not fit each other. Nothing changed.
            PoolSpaceError: there is no memory for the headers. A file that was made just now is gone again.
            OSError: the file cannot be made, opened or mapped.
        """
        if slab_bytes < 1:
            raise ValueError(f"slab_bytes is {slab_bytes}, expected a positive number")
        layout = Layout(data_bytes // slab_bytes, slab_bytes, min_slot_bytes)
        path = Path(path)
        notes: list[str] = []
        claim = PoolClaim.take(path, layout, file_mode, group)
        try:
            fd, page = _open_or_replace(path, claim, layout, notes)
            try:
                pool = cls(path, claim, fd, page, notes)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            claim.lock.close()
            raise
        pool._load_namespaces()
        pool._write_page(boot_epoch=page.boot_epoch + 1)
        return pool

    @property
    def lock(self) -> DeathLock:
        """The daemon's lock, taken by ``open``: free means that this process is gone."""
        return self._claim.lock

    @property
    def layout(self) -> Layout:
        """The file's arithmetic."""
        return self._page.layout

    @property
    def pool_id(self) -> bytes:
        """Random 16 bytes, made with the file; grants and leases name it."""
        return self._page.pool_id

    @property
    def boot_epoch(self) -> int:
        """Which daemon of this file this is, from 1: raised by ``open`` before anything is granted."""
        return self._page.boot_epoch

    @property
    def is_new(self) -> bool:
        """Whether no daemon before this one has served from the file."""
        return self.boot_epoch == 1

    @property
    def clear_epoch(self) -> int:
        """Raised by each clear; a namespace's own says which of its chunks are gone."""
        return self._page.clear_epoch

    @property
    def num_slabs(self) -> int:
        """Slabs of the data."""
        return self.layout.num_slabs

    @property
    def slab_bytes(self) -> int:
        """Bytes of one slab."""
        return self.layout.slab_bytes

    @property
    def slots_per_slab(self) -> int:
        """Header places a slab has."""
        return self.layout.slots_per_slab

    @property
    def min_slot_bytes(self) -> int:
        """Slot sizes are multiples of it."""
        return self.layout.min_slot_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of all slabs."""
        return self.layout.data_bytes

    def reserve_memory(self, progress: Callable[[float], None], cancelled: Callable[[], bool]) -> None:
        """Give every page of the file its memory where it has none yet. About 0.25 s a GiB; on a worker thread.

        Files set aside that no engine uses are freed first: the new pool may need their memory.

        Args:
            progress: told the fraction that is reserved, from 0 to 1.
            cancelled: asked every 256 MiB; True ends the reservation early, and nothing is raised.

        Raises:
            PoolSpaceError: the file system or the control group has not that much left; the message has the sizes.
        """
        self._claim.discard_set_aside(sys.maxsize)
        memory.reserve(self._fd, self.layout.file_bytes, progress, cancelled)

    def allocated_bytes(self) -> int:
        """Memory that the file occupies now."""
        return memory.allocated_bytes(self._fd)

    def scan(self) -> FoundHeaders:
        """The WRITING and READY slots that an earlier daemon left, in slot order; all others are free afterwards.

        Once, before anything is granted. What was dropped, and why, stands in ``notes``.
        """
        end = SLOT_HEADERS_OFFSET + self.layout.num_slots * SLOT_HEADER_BYTES
        scan = scan_headers(
            memoryview(self._headers)[SLOT_HEADERS_OFFSET:end],
            self.layout,
            self.clear_epoch,
            {entry.namespace: entry.clear_epoch for entry in self.namespaces()},
        )
        for slots, why in (
            (scan.torn, "were torn by the end of an earlier daemon"),
            (scan.stale, "had been cleared"),
            (scan.conflicting, "disagreed with their slab on its slot size"),
            (scan.repeated, "held a chunk that another slot holds in a newer generation"),
        ):
            for slot in slots:
                self.free_slot(slot)
            if slots:
                self.notes.append(f"{len(slots)} slots are freed: they {why}")
        return scan.found

    def write_slot(self, header: SlotHeader) -> None:
        """Write the header of one slot.

        Raises:
            ValueError: its offset or extent is not one that its slot can have, or an id has the wrong length.
        """
        if not self.layout.fits(header):
            raise ValueError(f"{header} does not fit {self.layout}")
        self._write_header(header.slot, encode_slot(header))

    def free_slot(self, slot: int) -> None:
        """Write the header of ``slot`` as free."""
        self._write_header(slot, bytes(SLOT_HEADER_BYTES))

    def write_clear_epoch(self, clear_epoch: int) -> None:
        """Raise the clear epoch, before any namespace is given this one."""
        self._write_page(clear_epoch=clear_epoch)

    def namespaces(self) -> list[NamespaceEntry]:
        """The namespaces that the file remembers."""
        return [entry for entry, _ in self._namespaces.values()]

    def write_namespace(self, entry: NamespaceEntry) -> None:
        """Remember a namespace; when the table is full, the one written longest ago is forgotten.

        Raises:
            ValueError: the id has the wrong length.
        """
        known = self._namespaces.get(entry.namespace)
        if known is not None and known[0] == entry:
            return
        record = encode_namespace(entry, self._namespace_sequence + 1)
        if known is None and len(self._namespaces) == NAMESPACE_ENTRIES:
            known = self._namespaces.pop(next(iter(self._namespaces)))
        self._namespaces.pop(entry.namespace, None)
        taken = {place for _, place in self._namespaces.values()}
        place = known[1] if known is not None else next(place for place in itertools.count() if place not in taken)
        self._namespace_sequence += 1
        start = NAMESPACE_OFFSET + place * NAMESPACE_ENTRY_BYTES
        self._headers[start : start + len(record)] = record
        self._namespaces[entry.namespace] = (entry, place)

    def discard_set_aside(self) -> int:
        """Free and remove files set aside that no engine uses any more; returns how many are left.

        Cheap when there are none. Call it every second or so: each call frees so much that the loop stands still for
        about 50 ms at most, and the next goes on from there.
        """
        return self._claim.discard_set_aside(_DISCARD_BYTES)

    def close(self) -> None:
        """Unmap and unlock. Nothing may be granted any more."""
        self._headers.close()
        os.close(self._fd)
        self.lock.close()

    def remove(self) -> None:
        """Take the file's name away, and that of all set aside. Engines notice, and memory goes when they unmap it."""
        self._claim.remove()

    def _write_header(self, slot: int, record: bytes) -> None:
        start = self.layout.header_offset(slot)
        self._headers[start : start + SLOT_HEADER_BYTES] = record

    def _write_page(self, **changes: int) -> None:
        page = msgspec.structs.replace(self._page, sequence=self._page.sequence + 1, **changes)
        record, start = encode_page(page), page_offset(page)
        self._headers[start : start + len(record)] = record
        self._page = page

    def _load_namespaces(self) -> None:
        """Read the table, the entry written longest ago first."""
        found = []
        for place in range(NAMESPACE_ENTRIES):
            start = NAMESPACE_OFFSET + place * NAMESPACE_ENTRY_BYTES
            decoded = decode_namespace(self._headers[start : start + NAMESPACE_ENTRY_BYTES])
            if decoded is not None:
                found.append((*decoded, place))
        found.sort(key=lambda item: item[1])
        for entry, sequence, place in found:
            self._namespaces[entry.namespace] = (entry, place)
            self._namespace_sequence = sequence


def _open_or_replace(path: Path, claim: PoolClaim, layout: Layout, notes: list[str]) -> tuple[int, HeaderPage]:
    """The claimed file if it has the wanted layout, else a new one in its place."""
    try:
        fd, page = _open(path, layout)
    except PoolFormatError as error:
        aside = claim.replace()
        notes.append(f"{path} is set aside as {aside.name}, the pool starts empty: {error}")
        fd, page = _open(path, layout)
    try:
        claim.set_permissions(fd)
        _reserve_headers(claim, fd, layout)
    except BaseException:
        os.close(fd)
        if not page.boot_epoch:
            claim.remove()  # it was made just now, and holds nothing
        raise
    return fd, page


def _reserve_headers(claim: PoolClaim, fd: int, layout: Layout) -> None:
    """Before they are mapped. Where there is no room, files set aside that no engine uses give some of theirs."""
    try:
        memory.reserve_start(fd, layout.data_offset)
    except memory.PoolSpaceError:
        claim.discard_set_aside(layout.data_offset)
        memory.reserve_start(fd, layout.data_offset)


def _open(path: Path, layout: Layout) -> tuple[int, HeaderPage]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return fd, _checked_page(fd, layout)
    except BaseException:
        os.close(fd)
        raise


def _checked_page(fd: int, layout: Layout) -> HeaderPage:
    page = decode_pages(os.pread(fd, HEADER_PAGES_BYTES, 0))
    if page.layout != layout:
        raise PoolFormatError(f"found {page.layout}, expected {layout}")
    size = os.fstat(fd).st_size
    if size != layout.file_bytes:
        raise PoolFormatError(f"found {size} bytes, expected {layout.file_bytes}")
    return page
