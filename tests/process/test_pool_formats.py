"""The pool of another version, after an upgrade or a rollback: a cold start, and no error of anybody."""

import pytest

from gateway.pool.format import MAGIC, PAGE_BYTES
from gateway.wire.messages import POOL_FORMAT
from tests.support.daemon import Daemon
from tests.support.engine import CHUNK_TOKENS, Engine, blocks, tokens
from tests.support.poll import until


def write_format(daemon: Daemon, number: int) -> None:
    """Leave the file as a daemon of that format would: in all formats it begins with the magic and the number."""
    with daemon.pool.open("r+b") as file:
        for copy in range(2):
            file.seek(copy * PAGE_BYTES)
            file.write(MAGIC + number.to_bytes(4, "little"))


@pytest.mark.parametrize("number", [POOL_FORMAT - 1, POOL_FORMAT + 1], ids=["older", "newer"])
def test_a_pool_of_another_format_is_set_aside_while_engines_go_on(daemon: Daemon, number: int) -> None:
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("before", tokens(3), blocks(3), seed=1)
        daemon.kill()
        write_format(daemon, number)
        daemon.start()

        engine.wait_healthy()
        assert engine.hit("empty", tokens(3)) == 0
        engine.store_and_wait("after", tokens(2), blocks(2), seed=2)
        stored = engine.read(blocks(2))
        assert engine.load("load", tokens(2), blocks(2, 20)) == set()
        assert engine.read(blocks(2, 20)) == stored
        assert engine.three() == (0, 0, 0)

        notes = [str(line["note"]) for line in daemon.log_lines("pool_note") if "set aside" in str(line["note"])]
        assert len(notes) == 1
        assert f"found pool format {number}, expected pool format {POOL_FORMAT}" in notes[0]
        until(lambda: not list(daemon.run_dir.glob("pool.*")), what="the old file is gone")

        daemon.kill()  # and once more, with nothing changed: warm
        daemon.start()
        engine.wait_healthy()
        assert engine.hit("warm", tokens(2)) == 2 * CHUNK_TOKENS
