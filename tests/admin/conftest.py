"""One admin process beside one core double for a module; the double is put back to healthy before each test."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.admin_process import AdminProcess
from tests.support.core_double import CoreDouble


@pytest.fixture(scope="module")
def _double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreDouble]:
    with CoreDouble(tmp_path_factory.mktemp("core")) as double:
        yield double


@pytest.fixture
def core(_double: CoreDouble) -> CoreDouble:
    _double.reset()
    return _double


@pytest.fixture(scope="module")
def _admin(_double: CoreDouble) -> Iterator[httpx.Client]:
    with AdminProcess(_double.run_dir) as process, process.client() as client:
        yield client


@pytest.fixture
def api(_admin: httpx.Client, core: CoreDouble) -> httpx.Client:
    """A client of the control listener, with a healthy ``core``."""
    return _admin
