"""With the settings that an operator gets: what a request waits for a gateway that hangs or is out of reach, and what
the log says of it."""

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.conftest import SETTINGS
from tests.engine.engine import Vllm, connector, prompt
from tests.support.daemon import Daemon
from tests.support.poll import until

LOOKUP_SECONDS = 0.2
LOAD_SECONDS = 3.0
#: Of what is promised, for a machine that is busy; twice as long would not pass.
TOLERANCE = 1.5
NOBODY = 65534
#: Root's right to read what is not its own is taken from the engine: what the directory's mode says counts.
WITHOUT_OVERRIDE = ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")


def lines_of(engine: Vllm) -> Counter[tuple[str, str]]:
    """The lines that the connector wrote, by event and reason."""
    found = re.findall(r"^(\w+) engine=\S+(?: reason=(\"(?:[^\"\\]|\\.)*\"|\S+))?", engine.log(), re.MULTILINE)
    return Counter(found)


def test_a_gateway_that_hangs_costs_a_lookup_and_a_load_what_is_promised(model: Path) -> None:
    began = time.monotonic()
    asked = prompt(1024, 510)
    with Daemon(SETTINGS) as daemon:
        daemon.start()
        with Vllm(model, connector(daemon.run_dir)) as engine:
            assert engine.ask("wait_healthy"), engine.ask("facts")
            computed = engine.generate(asked, 4)["tokens"]
            assert engine.ask("settle")

            def hangs_in_a_load() -> list[float]:
                """A lookup whose answer comes too late is tried again."""
                assert engine.ask("forget_prefixes")
                assert engine.generate(asked, 4)["tokens"] == computed
                return engine.ask("waits")["load"]

            engine.ask("signal_at_load", pid=daemon.pid, number=signal.SIGSTOP)
            (load,) = until(hangs_in_a_load, 60, "a load that meets a gateway that hangs")
            daemon.go_on()
            assert engine.ask("wait_healthy"), engine.ask("facts")

            daemon.pause()
            for i in range(6):
                assert engine.ask("forget_prefixes")
                assert engine.generate(asked, 4, f"r{i}")["cached"] == 0
            lookups = engine.ask("waits")["lookup"]
            lines = lines_of(engine)
            daemon.go_on()

    assert 0.5 < load < TOLERANCE * LOAD_SECONDS, "it had to wait until silence was long enough"
    assert 0.9 * LOOKUP_SECONDS < max(lookups) < TOLERANCE * LOOKUP_SECONDS
    events = {event for event, _ in lines}
    assert {"load_failed", "lookup_unanswered"} <= events, "why it was computed is said"
    assert max(lines.values()) <= 1 + (time.monotonic() - began) // 60, f"the same once a minute: {lines}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_run_directory_that_may_not_be_read_costs_hits_alone_and_is_named(model: Path) -> None:
    asked = prompt(1024, 511)
    with Daemon(SETTINGS) as daemon:
        daemon.start()
        os.chown(daemon.run_dir, NOBODY, NOBODY)
        with Vllm(model, connector(daemon.run_dir), prefix=WITHOUT_OVERRIDE) as engine:
            outputs = [engine.generate(asked, 4, f"r{i}") for i in range(4) if engine.ask("forget_prefixes")]
            assert [(output["cached"], output["reason"]) for output in outputs] == [(0, "length")] * 4
            assert max(engine.ask("waits")["lookup"]) < LOOKUP_SECONDS, "there is nothing to wait for"
            lines = lines_of(engine)
            assert set(lines.values()) == {2}, f"each half says each once: {lines}"
            reasons = dict(lines.keys())
            assert reasons.keys() == {"not_connected", "switch_ignored"}
            reason = reasons["not_connected"]
            assert f"{daemon.run_dir} (mode 0700, uid {NOBODY}, gid {NOBODY})" in reason
            assert "uid 0, gid 0" in reason

            os.chown(daemon.run_dir, 0, 0)

            assert engine.ask("wait_healthy"), engine.ask("facts")
            assert engine.ask("forget_prefixes")
            stored = engine.generate(asked, 4)
            assert engine.ask("settle")
            assert engine.ask("forget_prefixes")
            assert engine.generate(asked, 4)["cached"] == len(asked), "hits come without restarting the engine"
            assert stored["tokens"] == outputs[0]["tokens"]
