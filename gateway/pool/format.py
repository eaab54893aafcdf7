"""The pool file's bytes: header page, namespace table, slot headers, and where the data lies. Format 1.

Owns: encoding, decoding, checksums and the layout's arithmetic. Must not know: files, mappings, locks. Pure; any
thread.

The file, little-endian throughout::

    0          header page, two copies of 4 KiB: the one with the higher sequence number counts
    64 KiB     namespace table: 1024 entries of 512 bytes
    576 KiB    slot headers: ``slots_per_slab`` for each slab, 128 bytes each
    data       slabs, one after the other, from the next multiple of 64 KiB

A slab is cut into slots of one size, its *extent*; slot ``i`` of slab ``s`` has header ``s * slots_per_slab + i``
and its data at ``s * slab_bytes + i * extent``. A slab cut coarsely leaves its last headers unused.

Every record carries a CRC-32 of itself. A writer killed at any byte thus leaves the old record, the new one, or one
that nobody believes; of the header page it leaves the other copy. A slot header of zeros is a free slot: a new file
is a pool of free slots without one of them being written.

In every format, past and to come, the file begins with MAGIC and the format's number.
"""

from __future__ import annotations

import enum
import struct
import zlib

import msgspec

from gateway.wire.messages import POOL_FORMAT

MAGIC = b"kvgpool\0"
PAGE_BYTES = 4096
HEADER_PAGES_BYTES = 2 * PAGE_BYTES
ALIGNMENT = 65536  # the largest page size of the processors we run on: header and data regions are mapped apart

NAMESPACE_ENTRY_BYTES = 512
NAMESPACE_ENTRIES = 1024
MAX_MODEL_BYTES = 456  # of a model's name in UTF-8; what is longer is cut
NAMESPACE_OFFSET = ALIGNMENT

SLOT_HEADER_BYTES = 128
SLOT_CHECKED_BYTES = 120  # of a slot header: all before its checksum
SLOT_MAGIC = int.from_bytes(b"kvsl", "little")
SLOT_HEADERS_OFFSET = NAMESPACE_OFFSET + NAMESPACE_ENTRIES * NAMESPACE_ENTRY_BYTES
SLOT_ALIGNMENT = 64  # a cache line

_NAMESPACE_MAGIC = b"kvns"
_PREAMBLE = struct.Struct("<8sI")
_PAGE = struct.Struct("<8sI4x16s6Q")
_NAMESPACE = struct.Struct(f"<4sIIHxxQQ16s{MAX_MODEL_BYTES}s")
_SLOT = struct.Struct("<4I16s16s32s5Q")
_CRC = struct.Struct("<I4x")


class PoolFormatError(Exception):
    """The file is not a pool of this format. The message says what it is, and what was expected."""


class SlotState(enum.IntEnum):
    """What a slot header says of its slot."""

    FREE = 0
    WRITING = 1
    READY = 2


class Layout(msgspec.Struct, frozen=True):
    """The arithmetic of one file.

    Raises:
        ValueError: sizes that do not divide each other, or are not aligned.
    """

    num_slabs: int
    slab_bytes: int
    min_slot_bytes: int  # extents are multiples of it

    def __post_init__(self) -> None:
        if self.num_slabs < 1:
            raise ValueError(f"the pool has {self.num_slabs} slabs of {self.slab_bytes} bytes, expected at least one")
        if self.slab_bytes < 1 or self.slab_bytes % PAGE_BYTES:
            raise ValueError(f"slab_bytes is {self.slab_bytes}, expected a positive multiple of {PAGE_BYTES}")
        if self.min_slot_bytes < 1 or self.min_slot_bytes % SLOT_ALIGNMENT or self.slab_bytes % self.min_slot_bytes:
            raise ValueError(
                f"min_slot_bytes is {self.min_slot_bytes}, expected a multiple of {SLOT_ALIGNMENT} that divides"
                f" slab_bytes {self.slab_bytes}"
            )

    def __str__(self) -> str:
        return f"{self.num_slabs} slabs of {self.slab_bytes} bytes with slots of {self.min_slot_bytes} bytes and more"

    @property
    def slots_per_slab(self) -> int:
        """Header places a slab has."""
        return self.slab_bytes // self.min_slot_bytes

    @property
    def num_slots(self) -> int:
        """Header places of the file."""
        return self.num_slabs * self.slots_per_slab

    @property
    def data_bytes(self) -> int:
        """Bytes of all slabs."""
        return self.num_slabs * self.slab_bytes

    @property
    def data_offset(self) -> int:
        """Where the first slab begins in the file."""
        end = SLOT_HEADERS_OFFSET + self.num_slots * SLOT_HEADER_BYTES
        return -(-end // ALIGNMENT) * ALIGNMENT

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.data_offset + self.data_bytes

    def header_offset(self, slot: int) -> int:
        """Where the header of ``slot`` lies in the file.

        Raises:
            IndexError: there is no such slot.
        """
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of {self.num_slots}")
        return SLOT_HEADERS_OFFSET + slot * SLOT_HEADER_BYTES

    def fits(self, header: SlotHeader) -> bool:
        """Whether the header's offset and extent are those its place in the table allows."""
        slab, index = divmod(header.slot, self.slots_per_slab)
        return (
            0 <= slab < self.num_slabs
            and header.extent > 0
            and header.extent % self.min_slot_bytes == 0
            and (index + 1) * header.extent <= self.slab_bytes
            and header.offset == slab * self.slab_bytes + index * header.extent
            and header.payload_bytes <= header.extent
        )


class HeaderPage(msgspec.Struct, frozen=True):
    """What the file says of itself.

    Attributes:
        pool_id: random 16 bytes, made with the file.
        boot_epoch: raised at each start of a daemon on this file; generations begin with it.
        clear_epoch: raised by each clear; no namespace's is larger.
        sequence: raised with each write of the page.
    """

    pool_id: bytes
    layout: Layout
    boot_epoch: int = 0
    clear_epoch: int = 0
    sequence: int = 0


class NamespaceEntry(msgspec.Struct, frozen=True):
    """What a namespace belongs to, so that a warm start can name its chunks.

    Attributes:
        clear_epoch: chunks of this namespace published under an older one are gone.
    """

    namespace: bytes
    model: str
    shard_count: int
    chunk_tokens: int
    clear_epoch: int = 0


class SlotHeader(msgspec.Struct, frozen=True, gc=False):
    """One slot that is written or ready.

    Attributes:
        slot: index of the header.
        owner: the party that holds, or held, the reservation.
        depth: chunks before this one in its prompt.
        offset: of the slot's data, from the start of the data.
        extent: bytes of the slot; the same for all slots of a slab.
        payload_bytes: of them, bytes of the chunk.
        generation: never used twice in one file.
        clear_epoch: the header page's when the reservation began.
    """

    slot: int
    state: SlotState
    owner: bytes
    namespace: bytes
    key: bytes
    shard: int
    depth: int
    offset: int
    extent: int
    payload_bytes: int
    generation: int
    clear_epoch: int

    @property
    def is_ready(self) -> bool:
        """Whether the slot's bytes may be read."""
        return self.state is SlotState.READY


def encode_page(page: HeaderPage) -> bytes:
    """One copy of the header page."""
    layout = page.layout
    record = _PAGE.pack(
        MAGIC,
        POOL_FORMAT,
        page.pool_id,
        layout.num_slabs,
        layout.slab_bytes,
        layout.min_slot_bytes,
        page.boot_epoch,
        page.clear_epoch,
        page.sequence,
    )
    return record + _CRC.pack(zlib.crc32(record))


def page_offset(page: HeaderPage) -> int:
    """Which of the two copies this write goes to: never the one that counted before it."""
    return page.sequence % 2 * PAGE_BYTES


def decode_pages(data: bytes) -> HeaderPage:
    """The header page that counts, from the file's first HEADER_PAGES_BYTES.

    Raises:
        PoolFormatError: neither copy is one of format 1; the message names the format found, where one is named.
    """
    pages = []
    found = "no pool of kvgate"
    for start in range(0, HEADER_PAGES_BYTES, PAGE_BYTES):
        copy = data[start : start + PAGE_BYTES]
        if len(copy) < _PAGE.size + _CRC.size or not copy.startswith(MAGIC):
            continue
        number = _PREAMBLE.unpack_from(copy)[1]
        if number != POOL_FORMAT:
            found = f"pool format {number}"
            continue
        found = f"a damaged header of pool format {number}"
        if _CRC.unpack_from(copy, _PAGE.size)[0] != zlib.crc32(copy[: _PAGE.size]):
            continue
        _, _, pool_id, num_slabs, slab_bytes, min_slot_bytes, boot_epoch, clear_epoch, sequence = _PAGE.unpack_from(
            copy
        )
        try:
            layout = Layout(num_slabs, slab_bytes, min_slot_bytes)
        except ValueError:
            continue
        pages.append(HeaderPage(pool_id, layout, boot_epoch, clear_epoch, sequence))
    if not pages:
        raise PoolFormatError(f"found {found}, expected pool format {POOL_FORMAT}")
    return max(pages, key=lambda page: page.sequence)


def encode_namespace(entry: NamespaceEntry, sequence: int) -> bytes:
    """One entry of the namespace table. ``sequence`` tells which of the entries was written last.

    Raises:
        ValueError: the id has the wrong length.
        struct.error: a number does not fit its field.
    """
    model = entry.model.encode("utf-8", "replace")
    if len(model) > MAX_MODEL_BYTES:
        model = model[:MAX_MODEL_BYTES].decode("utf-8", "ignore").encode()
    if len(entry.namespace) != 16:
        raise ValueError(f"namespace must have 16 bytes: {entry}")
    record = _NAMESPACE.pack(
        _NAMESPACE_MAGIC,
        entry.shard_count,
        entry.chunk_tokens,
        len(model),
        sequence,
        entry.clear_epoch,
        entry.namespace,
        model,
    )
    return record + _CRC.pack(zlib.crc32(record))


def decode_namespace(data: bytes) -> tuple[NamespaceEntry, int] | None:
    """The entry and its sequence number; None: the place is free, or its entry was torn."""
    if not data.startswith(_NAMESPACE_MAGIC):
        return None
    if _CRC.unpack_from(data, _NAMESPACE.size)[0] != zlib.crc32(data[: _NAMESPACE.size]):
        return None
    _, shard_count, chunk_tokens, length, sequence, clear_epoch, namespace, name = _NAMESPACE.unpack_from(data)
    model = name[:length].decode("utf-8", "replace")
    return NamespaceEntry(namespace, model, shard_count, chunk_tokens, clear_epoch), sequence


def encode_slot(header: SlotHeader) -> bytes:
    """A slot header of SLOT_HEADER_BYTES; a free slot's is zeros.

    Raises:
        ValueError: an id or key has the wrong length.
        struct.error: a number does not fit its field.
    """
    if (len(header.owner), len(header.namespace), len(header.key)) != (16, 16, 32):
        raise ValueError(f"owner, namespace and key must have 16, 16 and 32 bytes: {header}")
    if header.state is SlotState.FREE:
        return bytes(SLOT_HEADER_BYTES)
    record = _SLOT.pack(
        SLOT_MAGIC,
        header.state,
        header.shard,
        header.depth,
        header.owner,
        header.namespace,
        header.key,
        header.offset,
        header.extent,
        header.payload_bytes,
        header.generation,
        header.clear_epoch,
    )
    return record + _CRC.pack(zlib.crc32(record))


def decode_slot(data: bytes, slot: int) -> SlotHeader | None:
    """The header of ``slot``; None: the slot is free, or its header was torn."""
    magic, state, shard, depth, owner, namespace, key, offset, extent, payload, generation, epoch = _SLOT.unpack_from(
        data
    )
    if magic != SLOT_MAGIC or state not in (SlotState.WRITING, SlotState.READY):
        return None
    if _CRC.unpack_from(data, SLOT_CHECKED_BYTES)[0] != zlib.crc32(data[:SLOT_CHECKED_BYTES]):
        return None
    return SlotHeader(
        slot, SlotState(state), owner, namespace, key, shard, depth, offset, extent, payload, generation, epoch
    )
