"""The examples run as a reader would run them, against the real gateway."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written


def _run(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_small_engine_stores_and_then_loads() -> None:
    with Daemon({"KVGATE_POOL_SIZE": "64MiB", "KVGATE_SLAB_SIZE": "16MiB"}) as daemon:
        daemon.start()
        first = _run("examples/engine.py", str(daemon.run_dir))
        second = _run("examples/engine.py", str(daemon.run_dir))
        told = httpx.get(f"{daemon.admin_url}/v1/transfers?request=request-1").json()

    assert (first.returncode, first.stdout) == (
        0,
        "stored, gateway healthy, 0 events retained\n",
    ), first.stderr
    assert (second.returncode, second.stdout) == (0, "loaded 768 tokens, 0 blocks failed, value 0.5\n"), second.stderr
    # Both lived shorter than a heartbeat: what they did is told all the same.
    assert [(t["kind"], t["outcome"]) for t in told["transfers"]] == [("retrieve", "loaded"), ("store", "stored")]


def test_the_small_engine_goes_on_without_a_gateway(tmp_path: Path) -> None:
    alone = _run("examples/engine.py", str(tmp_path / "nobody"))

    assert (alone.returncode, alone.stdout) == (
        0,
        "not stored, gateway connecting, 0 events retained\n",
    ), alone.stderr


def test_the_small_engine_asks_for_its_directory() -> None:
    done = _run("examples/engine.py")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage: python examples/engine.py RUN_DIR")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_demo_holds_all_it_says() -> None:
    before = set(MEMORY.glob("kvgate-demo-*"))

    done = _run("-m", "examples.demo", "--requests", "60")

    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        cells[1].strip(): cells[2].strip() for line in done.stdout.splitlines() if len(cells := line.split("│")) > 3
    }
    assert int(rows["requests"]) >= 60
    for figure in ("wrong bytes", "pending stores", "pending retrieves", "retained events"):
        assert rows[figure] == "0", figure
    for figure in ("chunks recovered", "drain seconds", "restart seconds"):
        assert float(rows[figure]) > 0, figure
    assert set(MEMORY.glob("kvgate-demo-*")) == before


def test_a_missing_trace_is_told_before_anything_starts() -> None:
    done = _run("-m", "examples.demo", environ={"KVGATE_TRACE": "/nowhere/trace.jsonl"})

    assert done.returncode == 1
    assert "/nowhere/trace.jsonl" in done.stderr
