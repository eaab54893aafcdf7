"""An engine that is there before its gateway; of MLA, and without a prefix cache of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import PATIENT, SETTINGS, at_rest
from tests.engine.engine import Vllm, connector, prompt
from tests.support.daemon import REPOSITORY, Daemon

TOKENS = 512
#: Its path to the token after a long prompt, and that to the token after one token, add up in another order.
TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def mla_model() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvgate-model-") as folder:
        path = Path(folder) / "mla"
        words = [sys.executable, "-m", "examples.vllm.tiny_model", str(path), "--mla", "--layers=2", "--hidden=128"]
        subprocess.run(words, cwd=REPOSITORY, check=True, timeout=120)
        yield path


def test_an_engine_that_starts_before_its_gateway(mla_model: Path) -> None:
    asked = prompt(TOKENS, 400)
    with Daemon(SETTINGS) as daemon:
        told = connector(daemon.run_dir, PATIENT)
        with Vllm(mla_model, told, enable_prefix_caching=False) as engine:
            without = engine.generate(asked, 4)
            assert (without["cached"], without["reason"]) == (0, "length")
            assert f"{daemon.run_dir}/pool does not exist" in engine.log()

            daemon.start()

            assert engine.ask("wait_healthy")
            computed = engine.generate(asked, 4)
            assert computed["cached"] == 0
            assert engine.ask("settle")
            engine.ask("quiesce")
            loaded = engine.generate(asked, 4)
            assert loaded["cached"] == TOKENS, "the gateway's: it has no prefix cache itself"
            assert loaded["tokens"] == computed["tokens"] == without["tokens"]
            assert loaded["logprobs"] == pytest.approx(computed["logprobs"], abs=TOLERANCE)
            assert engine.ask("digests", kind="retrieve") == engine.ask("digests", kind="store") != {}
            engine.ask("quiesce")
            assert engine.ask("facts")["blocks_held"] == 0
            at_rest(daemon)
