"""One process, two gateways: one of them dead, and asked thousands of times. The other one's engine does not notice."""

import time

import pytest

from adapter import State
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until

NUM_REQUESTS = 5000  # several times what a socket without a peer takes in before a send blocks


@pytest.mark.parametrize("outage", ["kill", "pause"])
def test_what_is_asked_of_a_lost_gateway_holds_nobody_up(outage: str) -> None:
    with Daemon() as lost, Daemon() as other:
        with (
            Engine(lost.start().run_dir, name="lost", max_pending_ops=64).wait_healthy() as unlucky,
            Engine(other.start().run_dir, name="other").wait_healthy() as lucky,
        ):
            lucky.store_and_wait("kept", tokens(4, seed=1), blocks(4), seed=1)
            getattr(lost, outage)()

            for number in range(NUM_REQUESTS):
                unlucky.scheduler.maybe_submit_lookup_request(f"r{number}", tokens(1, seed=2))
                unlucky.store(f"r{number}", tokens(1, seed=2), blocks(1))
                unlucky.scheduler.check_lookup_result(f"r{number}")
            assert lucky.hit("asked", tokens(4, seed=1)) == len(tokens(4))
            assert lucky.load("loaded", tokens(4, seed=1), blocks(4, 8)) == set()
            assert lucky.read(blocks(4, 8)) == lucky.read(blocks(4))

            until(lambda: unlucky.worker.state in (State.DEAD, State.UNRESPONSIVE), what="it is seen to be lost")
            assert unlucky.worker.wait_settled(5)
            assert unlucky.scheduler.lookup("after", tokens(1, seed=2), timeout_seconds=1) == 0
            began = time.monotonic()
            unlucky.close()
            assert time.monotonic() - began < 3
        if outage == "pause":
            lost.go_on()
