"""Breaking a critical health check for real, and mending it."""

import contextlib
from collections.abc import Iterator

from gateway.pool.format import HEADER_PAGES_BYTES
from tests.support.daemon import Daemon


@contextlib.contextmanager
def damaged_pool(daemon: Daemon) -> Iterator[None]:
    """Overwrite the header pages of the daemon's pool file: its ``pool`` check fails until they are put back."""
    with daemon.pool.open("r+b", buffering=0) as file:
        pages = file.read(HEADER_PAGES_BYTES)
        file.seek(0)
        file.write(b"\xa5" * HEADER_PAGES_BYTES)
        try:
            yield
        finally:
            file.seek(0)
            file.write(pages)
