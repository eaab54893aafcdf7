"""Chaos runs for its minute beside the tests; here is that it would find something, and that a seed replays it."""

import subprocess
import sys
from itertools import islice

from tests.chaos.schedule import BLOWS, blows
from tests.support.daemon import REPOSITORY


def test_a_seed_gives_the_same_blows_again_and_another_gives_others() -> None:
    first, again, other = (list(islice(blows(seed), 200)) for seed in (7, 7, 8))

    assert first == again != other
    assert {blow.what for blow in first} == set(BLOWS)


def test_engines_that_reuse_blocks_without_a_word_are_found_by_their_wrong_bytes() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seconds=8", "--seed=7", "--careless"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False)

    assert run.returncode == 1, run.stdout + run.stderr
    assert "wrong_chunks" in run.stdout
