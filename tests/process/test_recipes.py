"""docs/recipes.md, followed step by step: its own commands, a real gateway, real engines, real signals."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from gateway.wire.messages import POOL_FORMAT
from tests.process.test_pool_formats import write_format
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.engine import CHUNK_TOKENS, Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until

PAGE = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")


def commands(recipe: str) -> list[str]:
    """The lines of a recipe that an operator types, in order."""
    section = PAGE.split(f"\n## {recipe}\n")[1].split("\n## ")[0]
    return [line for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]


def follow(daemon: Daemon, line: str) -> subprocess.CompletedProcess[str]:
    """Type one line."""
    program, *words = shlex.split(line)
    assert program == "kvgate"
    environ = {**os.environ, "KVGATE_RUN_DIR": str(daemon.run_dir)}
    return subprocess.run(
        [*COMMAND, *words], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def done(daemon: Daemon, line: str) -> str:
    """Type one line that must succeed; what it prints."""
    followed = follow(daemon, line)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    return followed.stdout


class User:
    """Somebody whose requests go to the engine all the time."""

    def __init__(self, engine: Engine, token_ids: list[int]) -> None:
        self.answers: list[int] = []
        self.errors: list[Exception] = []
        self._engine = engine
        self._tokens = token_ids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        number = 0
        while not self._is_over.wait(0.02):
            number += 1
            try:
                self.answers.append(self._engine.hit(f"user-{number}", self._tokens, seconds=0.2))
            except Exception as error:
                self.errors.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def served(engine: Engine, token_ids: list[int]) -> Iterator[User]:
    """A user meanwhile, who sees hits before and misses at most, never an error or half a prompt."""
    with User(engine, token_ids) as user:
        until(lambda: len(token_ids) in user.answers, 30, "hits before")
        yield user
    assert user.errors == []
    assert set(user.answers) <= {0, len(token_ids)}


def sees_again(user: User, tokens_found: int) -> None:
    seen = len(user.answers)
    until(lambda: tokens_found in user.answers[seen:], 30, f"{tokens_found} tokens found")


def example(daemon: Daemon) -> str:
    """What the example engine says, in a process of its own."""
    command = [sys.executable, REPOSITORY / "examples" / "engine.py", daemon.run_dir]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_off_at_once(daemon: Daemon) -> None:
    off, on = commands("Off, at once")
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", tokens(3), blocks(3), seed=1)
        with served(engine, tokens(3)) as user:
            daemon.kill()  # it need not be there
            done(daemon, off)
            daemon.start()
            until(lambda: daemon.snapshot().ready, what="the gateway is back")
            sees_again(user, 0)
            until(lambda: daemon.snapshot().engines, 30, "the engine is back too")
            assert engine.hit("q", tokens(3)) == 0
            done(daemon, on)
            sees_again(user, len(tokens(3)))


def test_a_new_version_of_the_gateway(daemon: Daemon) -> None:
    (look,) = commands("A new version of the gateway")
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", tokens(3), blocks(3), seed=1)
        stored, boot = engine.read(blocks(3)), daemon.ready_line["boot_id"]
        with served(engine, tokens(3)) as user:
            assert daemon.stop() == 0
            sees_again(user, 0)
            daemon.start()
            sees_again(user, len(tokens(3)))
            assert "All is well" in done(daemon, look)

        assert daemon.ready_line["boot_id"] != boot
        assert engine.load("l", tokens(3), blocks(3, 20)) == set()
        assert engine.read(blocks(3, 20)) == stored
        assert engine.three() == (0, 0, 0)


def test_back_to_the_version_before_with_another_pool_format(daemon: Daemon) -> None:
    version, look = commands("Back to the version before")
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", tokens(3), blocks(3), seed=1)
        with served(engine, tokens(3)) as user:
            assert daemon.stop() == 0
            write_format(daemon, POOL_FORMAT + 1)  # as the newer version leaves it
            daemon.start()
            engine.wait_healthy()
            sees_again(user, 0)
            assert f"pool format {POOL_FORMAT}" in done(daemon, version)
            assert "All is well" in done(daemon, look)

        (line,) = [line for line in daemon.log_lines("pool_note") if "set aside" in str(line["note"])]
        assert f"found pool format {POOL_FORMAT + 1}, expected pool format {POOL_FORMAT}" in str(line["note"])
        until(lambda: not list(daemon.run_dir.glob("pool.*")), what="the old pool's memory is free")
        engine.store_and_wait("again", tokens(3), blocks(3), seed=1)


def test_work_on_a_node(daemon: Daemon) -> None:
    (drain,) = commands("Work on a node")
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", tokens(3), blocks(3), seed=1)
        event = FakeEvent()
        with served(engine, tokens(3)) as user:
            engine.store("under way", tokens(2, seed=2), blocks(2, 10), event)
            until(lambda: daemon.snapshot().slots.writing, what="the store is granted")
            outputs: list[str] = []
            draining = threading.Thread(target=lambda: outputs.append(done(daemon, drain)))
            draining.start()
            sees_again(user, 0)
            event.fire()  # what was under way ends, well within the deadline
            draining.join(60)
            assert "stopped" in outputs[0]
            assert daemon.wait() == 0
            (line,) = daemon.log_lines("stopped")
            assert (line["outcome"], line["operations_done"], line["operations_cut"]) == ("completed", 1, 0)
            assert engine.total("operations", kind="store", outcome="stored") == 2
            assert engine.three() == (0, 0, 0)

            daemon.start()
            sees_again(user, len(tokens(3)))
        assert engine.hit("q", tokens(2, seed=2)) == 2 * CHUNK_TOKENS


@pytest.fixture
def roomy() -> Iterator[Daemon]:
    """A daemon with slabs for the example engine's chunks of 4 MiB."""
    sizes = {"KVGATE_POOL_SIZE": "32MiB", "KVGATE_SLAB_SIZE": "4MiB", "KVGATE_MIN_CHUNK_BYTES": "256KiB"}
    with Daemon(sizes) as started:
        yield started.start()


def test_a_new_version_of_an_engine(roomy: Daemon) -> None:
    (look,) = commands("A new version of an engine")
    assert example(roomy).startswith("stored")
    command = [sys.executable, "-m", "tests.support.engine_process", str(roomy.run_dir), "stop-in-copy"]
    forced = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        until(lambda: roomy.snapshot().slots.writing, 60, "an engine is writing")
        assert "stopping" in done(roomy, look)
    finally:
        forced.kill()
        forced.wait()

    def slots() -> tuple[int, int, int]:
        of = roomy.snapshot().slots
        return of.writing, of.quarantined, of.ready

    until(lambda: slots() == (0, 0, 3), 20, "what it was writing is free, what the other stored is there")
    until(
        lambda: "loaded 768 tokens, 0 blocks failed" in example(roomy), 60, "the new one loads what the old one stored"
    )


def test_one_engine_without_the_cache(daemon: Daemon) -> None:
    drain, look, resume = commands("One engine without the cache")
    with (
        Engine(daemon.run_dir, name="engine-7").wait_healthy() as looked_into,
        Engine(daemon.run_dir, name="other").wait_healthy() as other,
    ):
        looked_into.store_and_wait("r", tokens(3), blocks(3), seed=1)
        with served(other, tokens(3)) as user:
            done(daemon, drain)
            until(lambda: looked_into.hit("q", tokens(3)) == 0, what="it finds nothing")
            assert "engine-7" in done(daemon, look)
            sees_again(user, len(tokens(3)))
            done(daemon, resume)
            until(lambda: looked_into.hit("q", tokens(3)) == len(tokens(3)), what="it finds all again")
        assert 0 not in user.answers[user.answers.index(len(tokens(3))) :], "the other had its hits all the time"


def test_taking_kvgate_away(daemon: Daemon) -> None:
    drain, purge = commands("Taking kvgate away")
    run_dir, admin_dir = daemon.run_dir, daemon.admin_dir
    with Engine(daemon.run_dir).wait_healthy() as engine:
        engine.store_and_wait("r", tokens(3), blocks(3), seed=1)
        done(daemon, drain)
        assert daemon.wait() == 0
        refused = follow(daemon, purge)
        assert refused.returncode == 1
        assert "lock" in refused.stderr
        assert engine.hit("q", tokens(3)) == 0

    done(daemon, purge)
    assert not run_dir.exists()
    assert not admin_dir.exists()
    assert {path.suffix for path in Path(daemon.base).iterdir()} <= {".out", ".err", ".log", ""}
    with Engine(run_dir) as engine:  # it still looks for a gateway, and finds none
        assert engine.hit("q", tokens(3)) == 0


def test_every_recipe_is_followed() -> None:
    recipes = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    source = Path(__file__).read_text(encoding="utf-8")

    assert len(recipes) >= 6
    assert [recipe for recipe in recipes if f'commands("{recipe}")' not in source] == []
