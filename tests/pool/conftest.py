"""Property tests here run without Hypothesis's per-example deadline: the machine may be busy."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gateway.pool.file import PoolFile
from tests.pool.records import open_pool

settings.register_profile("pool", deadline=None)
settings.load_profile("pool")


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a pool may be made: in a private directory of a memory file system, as in use."""
    with tempfile.TemporaryDirectory(prefix="kvgate-pool-", dir="/dev/shm") as directory:
        yield Path(directory) / "pool"


@pytest.fixture
def pool(path: Path) -> Iterator[PoolFile]:
    opened = open_pool(path)
    yield opened
    opened.close()
