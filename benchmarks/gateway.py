"""The gateway under measurement: the real ``kvgate serve`` with its defaults, in a private directory of /dev/shm.

Owns: the settings of measured daemons, and filling a pool with chunks. Must not know: what is measured.
"""

from collections.abc import Iterator

from gateway.wire.codes import Role
from tests.support.daemon import SETTINGS, Daemon
from tests.support.party import RawParty

#: Bytes of a chunk where nobody copies one.
SMALL_CHUNK_BYTES = 4096
#: Slots asked for in one message.
WINDOW = 4096


def gateway(pool_size: str, **settings: str) -> Daemon:
    """A daemon that is not started yet; everything but the pool's size and ports is as an operator gets it."""
    defaults = dict.fromkeys(SETTINGS, "")
    return Daemon({**defaults, "KVGATE_ADMIN": "127.0.0.1:0", "KVGATE_POOL_SIZE": pool_size, **settings})


def small_worker(daemon: Daemon) -> RawParty:
    """A registered worker half of small chunks."""
    return RawParty(daemon.run_dir, Role.WORKER, chunk_bytes=SMALL_CHUNK_BYTES).register()


def fill(worker: RawParty, num_chunks: int) -> Iterator[int]:
    """Store the chunks with the numbers below ``num_chunks``, their bytes left as they are; yields how many are in."""
    for start in range(0, num_chunks, WINDOW):
        numbers = range(start, min(num_chunks, start + WINDOW))
        operation = worker.next_operation()
        grants = worker.reserve(numbers, operation)
        worker.commit(operation, *(grant.generation for grant in grants if grant.slot >= 0))
        yield numbers.stop
