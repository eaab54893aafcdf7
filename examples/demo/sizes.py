"""How much of a realistic model this machine can hold.

Owns: the demo's geometry and its scaling. Must not know: processes, tensors. Reads /proc, cgroup files and the file
system's free space once.

The full size is 16 layers of ``[2, num_blocks, 16, 8, 128]`` bfloat16: 1 MiB a block, 16 MiB a 256-token chunk. A
smaller machine gets fewer layers, so that every count of chunks stays as it is.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

BLOCK_TOKENS = 16
CHUNK_TOKENS = 256
BLOCKS_PER_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS
KV_HEADS = 8
HEAD_DIM = 128
LAYER_CHUNK_BYTES = 2 * CHUNK_TOKENS * KV_HEADS * HEAD_DIM * 2

NUM_ENGINES = 2
ENGINE_CHUNKS = 64
MAX_PROMPT_CHUNKS = 20
_PROCESS_BYTES = 400 << 20  # an engine's interpreter with PyTorch, measured at 300 MB


class TooSmallError(Exception):
    """Not even one layer fits; the message has the figures."""


class Sizes(msgspec.Struct, frozen=True):
    """What the demo makes."""

    layers: int
    pool_chunks: int

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk over all layers."""
        return self.layers * LAYER_CHUNK_BYTES

    @property
    def pool_bytes(self) -> int:
        """Size of the gateway's pool."""
        return self.pool_chunks * self.chunk_bytes


@dataclass(frozen=True)
class Machine:
    """Free bytes of memory, and of the file system that will hold the pool (itself memory, where it is tmpfs)."""

    memory_bytes: int
    pool_bytes: int


def measure(pool_folder: Path) -> Machine:
    """What is free now: the least of what the machine and the control group have."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = [int(meminfo["MemAvailable"].split()[0]) << 10]
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if Path(limit).exists() and (text := Path(limit).read_text(encoding="ascii").strip()) != "max":
            free.append(int(text) - int(Path(usage).read_text(encoding="ascii")))
    status = os.statvfs(pool_folder)
    return Machine(memory_bytes=min(free), pool_bytes=status.f_bavail * status.f_frsize)


def fit(machine: Machine) -> Sizes:
    """The largest sizes that leave a third of the memory, and a tenth of the pool's file system, to others.

    Raises:
        TooSmallError: nothing fits.
    """
    for pool_chunks in (256, 128, 64):
        for layers in (16, 8, 4, 2, 1):
            sizes = Sizes(layers, pool_chunks)
            engines = NUM_ENGINES * (ENGINE_CHUNKS * sizes.chunk_bytes + _PROCESS_BYTES)
            fits_memory = (sizes.pool_bytes + engines) * 3 <= machine.memory_bytes * 2
            if fits_memory and sizes.pool_bytes * 10 <= machine.pool_bytes * 9:
                return sizes
    raise TooSmallError(
        f"{machine.memory_bytes >> 20} MiB of memory and {machine.pool_bytes >> 20} MiB for the pool are free: "
        "the demo needs about 1800 and 72"
    )
