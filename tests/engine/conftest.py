"""A gateway and two vLLM processes that most tests of this folder share, because starting one takes ten seconds."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine import Vllm, connector
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.poll import until

HAS_VLLM = importlib.util.find_spec("vllm") is not None
#: Where there is no vLLM nothing is collected here; run alone, that is an error ("no tests ran"), not a pass.
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]

#: A pool for real chunks. Its invariants are not checked after every step: over so many slots that takes too long.
SETTINGS = {
    "KVGATE_POOL_SIZE": "512MiB",
    "KVGATE_SLAB_SIZE": "16MiB",
    "KVGATE_MIN_CHUNK_BYTES": "64KiB",
    "KVGATE_VERIFY": "",
}
#: Of the connector. A machine that is busy is no reason to find nothing.
PATIENT = {"kvgate.heartbeat_seconds": 0.5, "kvgate.lookup_timeout_seconds": 5.0}
#: Of vLLM: it takes adapters.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}


@pytest.fixture(scope="session")
def model() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvgate-model-") as folder:
        path = Path(folder) / "tiny"
        words = [sys.executable, "-m", "examples.vllm.tiny_model", str(path), "--layers=4", "--hidden=256"]
        subprocess.run(words, cwd=REPOSITORY, check=True, timeout=120)
        yield path


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[Daemon]:
    with Daemon(SETTINGS) as started:
        yield started.start()


@pytest.fixture(scope="session")
def engines(model: Path, shared_daemon: Daemon) -> Iterator[tuple[Vllm, Vllm]]:
    with contextlib.ExitStack() as stack:
        engines = [
            Vllm(model, connector(shared_daemon.run_dir, {**PATIENT, "kvgate.engine_name": name}), **LORA)
            for name in ("first", "second")
        ]
        for engine in engines:
            stack.callback(engine.close)
        yield engines[0].wait_started(), engines[1].wait_started()


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    """The gateway, ready."""
    if not shared_daemon.is_running:
        shared_daemon.start()
    return shared_daemon


@pytest.fixture
def first(engines: tuple[Vllm, Vllm], daemon: Daemon) -> Iterator[Vllm]:
    yield from _ready(engines[0])


@pytest.fixture
def second(engines: tuple[Vllm, Vllm], daemon: Daemon) -> Iterator[Vllm]:
    yield from _ready(engines[1])


def _ready(engine: Vllm) -> Iterator[Vllm]:
    """Healthy, with nothing of its own cached; afterwards nothing may be pending, held or tracked."""
    assert engine.ask("wait_healthy"), engine.ask("facts")
    assert engine.ask("forget_prefixes")
    engine.ask("forget_digests")
    yield engine
    engine.ask("hold_copies", hold=False)
    engine.ask("fail_loads_from", chunk=-1)
    assert engine.ask("settle")
    engine.ask("quiesce")
    engine.ask("undo_reset")
    facts = engine.ask("facts")
    left = {name: facts[name] for name in ("pending", "tracked", "requests", "blocks_held")}
    assert left == {"pending": [0, 0, 0], "tracked": 0, "requests": 0, "blocks_held": 0}


def at_rest(daemon: Daemon) -> None:
    """Nobody holds anything in the gateway."""

    def held() -> list[tuple[int, int, int]]:
        parties = [party for engine in daemon.snapshot().engines for party in engine.parties]
        return [(party.sessions, party.read_leases, party.reserved_bytes) for party in parties]

    until(lambda: not any(any(numbers) for numbers in held()), 10, "no session, read lease or reservation")
