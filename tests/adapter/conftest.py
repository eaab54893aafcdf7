import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapter.held import HeldCopy
from tests.adapter.scripted import ScriptedGateway
from tests.support.daemon import Daemon
from tests.support.poll import until


@pytest.fixture(autouse=True)
def verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ledger checks its invariants after each step."""
    monkeypatch.setenv("KVGATE_VERIFY", "1")
    monkeypatch.delenv("KVGATE_ENGINE_NAME", raising=False)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread of an adapter and no descriptor outlives its test."""
    descriptors = _descriptors()
    yield
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("kvgate-")], 5, "no thread is left")
    until(lambda: _descriptors() <= descriptors, 5, "no descriptor is left")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A directory as a gateway makes it."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def scripted(run_dir: Path) -> Iterator[ScriptedGateway]:
    with ScriptedGateway(run_dir) as gateway:
        yield gateway


@pytest.fixture
def held() -> Iterator[HeldCopy]:
    """A worker's copies, held in the middle; let go at the end of the test at the latest."""
    copy = HeldCopy()
    yield copy
    copy.go.set()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as started:
        yield started.start()
