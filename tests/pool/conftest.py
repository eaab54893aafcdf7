"""Property tests here run without Hypothesis's per-example deadline: the machine may be busy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gateway.pool.file import PoolFile
from tests.pool.records import open_pool

settings.register_profile("pool", deadline=None)
settings.load_profile("pool")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool"


@pytest.fixture
def pool(path: Path) -> Iterator[PoolFile]:
    opened = open_pool(path)
    yield opened
    opened.close()
