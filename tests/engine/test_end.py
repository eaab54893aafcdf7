"""Nothing outlives an engine that was closed: no process of vLLM's, and nothing that they made in /dev/shm."""

import os
import signal
from pathlib import Path

import pytest

from tests.engine.engine import Vllm, prompt
from tests.support import processes

SHARED = Path("/dev/shm")  # noqa: S108 - it is looked at, and nothing is made in it


def shared_files(pids: list[int]) -> set[Path]:
    """What these processes have mapped of /dev/shm, as it is named there: a name in a mapping may be an older one."""
    maps = [(Path("/proc") / str(pid) / "maps").read_text().splitlines() for pid in pids]
    mapped = {int(line.split()[4]) for lines in maps for line in lines if f"{SHARED}/" in line}
    return {path for path in SHARED.iterdir() if path.stat().st_ino in mapped}


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_nothing_outlives_an_engine_in_processes_of_its_own(model: Path, end: str) -> None:
    engine = Vllm(model, None, module="benchmarks.vllm_host")
    with engine:
        engine.ask("first_token", prompt=prompt(100, 500))
        running = processes.of_session(engine.pid)
        shared = shared_files(running)
        assert len(running) >= 3, "the one that is told, the engine core, a worker"
        assert any(path.name.startswith("psm_") for path in shared), "they share memory"
        assert any(path.name.startswith("sem.mp-") for path in shared), "and semaphores"
        if end == "killed":
            os.kill(engine.pid, signal.SIGKILL)

    assert not [pid for pid in running if processes.state(pid) not in ("gone", "Z")]
    assert processes.of_session(engine.pid) == []
    assert not [path for path in shared if path.exists()]
