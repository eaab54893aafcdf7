"""A vLLM whose copies the gateway makes: its KV storage lies in memory that both have mapped."""

from pathlib import Path

from tests.engine.conftest import PATIENT, SETTINGS
from tests.engine.engine import CHUNK_TOKENS, Vllm, connector, prompt
from tests.engine.test_hits import close
from tests.support.daemon import Daemon


def test_hits_a_killed_gateway_and_the_next_one(model: Path) -> None:
    with Daemon({**SETTINGS, "KVGATE_TRANSFER": "handle"}) as daemon:
        daemon.start()
        engine = Vllm(model, connector(daemon.run_dir, {**PATIENT, "kvgate.transfer": "handle"}))
        try:
            engine.wait_started()
            assert engine.ask("wait_healthy"), engine.ask("facts")
            asked = prompt(2048, 1)
            computed = engine.generate(asked, max_tokens=8)
            assert engine.ask("settle")
            assert engine.ask("forget_prefixes")

            loaded = engine.generate(asked, max_tokens=8)

            assert (computed["cached"], loaded["cached"]) == (0, 2048 // CHUNK_TOKENS * CHUNK_TOKENS)
            assert loaded["tokens"] == computed["tokens"]
            assert close(loaded["logprobs"], computed["logprobs"])
            copies = {s.labels: s.value for s in daemon.snapshot().counters if s.name == "copies"}
            assert copies["retrieve", "copied"] == 2048 // CHUNK_TOKENS

            daemon.kill()
            assert engine.ask("forget_prefixes")
            alone = engine.generate(asked, max_tokens=8)
            assert alone["cached"] == 0
            assert alone["tokens"] == computed["tokens"]

            daemon.start()
            assert engine.ask("wait_healthy"), engine.ask("facts")
            assert engine.ask("forget_prefixes")
            again = engine.generate(asked, max_tokens=8)
            assert again["cached"] == loaded["cached"]
            assert close(again["logprobs"], computed["logprobs"])
        finally:
            engine.close()
