"""Faults that repeat themselves thousands of times, and what a real gateway and a real engine write meanwhile."""

import logging
import os
import threading
import urllib.request

from gateway.wire.codes import ErrorCode
from gateway.wire.messages import Drain, Error, Ping
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.party import RawParty
from tests.support.poll import until

PEERS = 8
ROUNDS = 250  # of each peer, with four refusals each


def requests(daemon: Daemon, op: str) -> float:
    counters = daemon.snapshot().counters
    return sum(sample.value for sample in counters if sample.name == "requests" and sample.labels[0] == op)


def test_refusals_of_eight_peers_are_counters_and_not_one_line(daemon: Daemon) -> None:
    refused: list[ErrorCode] = []

    def storm() -> None:
        with daemon.dealer() as dealer:
            dealer.hello()
            for _ in range(ROUNDS):
                dealer.send(Drain(number=0, requested_by="a peer"))
                dealer.send(Ping(number=0, boot=os.urandom(16)))
                dealer.send(Ping(number=0, party=os.urandom(16)))
                dealer.send_frames(b"\xc1")
                replies = [dealer.receive() for _ in range(4)]
                refused.extend(reply.code for reply in replies if isinstance(reply, Error))

    before = len(daemon.log_lines())
    peers = [threading.Thread(target=storm) for _ in range(PEERS)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join(100)

    assert len(refused) >= 3 * PEERS * ROUNDS
    assert {ErrorCode.FORBIDDEN, ErrorCode.WRONG_BOOT} <= set(refused)
    assert requests(daemon, "DRAIN") == PEERS * ROUNDS
    assert daemon.log_lines()[before:] == []


def test_copies_that_all_fail_are_one_line_with_its_request(daemon: Daemon, caplog) -> None:
    def fails(*_: object) -> None:
        raise OSError("the device is gone")

    with caplog.at_level(logging.INFO, "kvgate.adapter"), Engine(daemon.run_dir, copy=fails).wait_healthy() as engine:
        for number in range(100):
            engine.store(f"request-{number}", tokens(2, seed=number), blocks(2))
        assert engine.worker.wait_settled(30)
        assert engine.total("operations", kind="store", outcome="failed") == 100

    (line,) = [record for record in caplog.records if record.event == "copy_failed"][:1]
    assert line.facts["engine"] == "engine"
    assert line.facts["request"].startswith("request-")
    assert line.facts["operation"] > 0
    assert "the device is gone" in caplog.text
    assert sum(record.event == "copy_failed" for record in caplog.records) <= 2, "100 copies, within some seconds"


def test_an_engine_of_many_parties_that_dies_is_one_line_with_its_name(daemon: Daemon) -> None:
    parties = [RawParty(daemon.run_dir, engine="engine-9").register() for _ in range(30)]
    for party in parties:
        party.die()

    until(lambda: daemon.snapshot().engines == () or not daemon.snapshot().engines[0].parties, 20, "all are found dead")
    first, *others = daemon.log_lines("party_died")
    assert first["engine"] == "engine-9"
    assert len(others) <= 1
    for party in parties:
        party.close()


def test_at_rest_nothing_is_written(daemon: Daemon) -> None:
    """Between two heartbeats every timer of the gateway and of an adapter comes round many times."""
    with Engine(daemon.run_dir, name="resting").wait_healthy():
        lines, pings = len(daemon.log_lines()), requests(daemon, "PING")
        while requests(daemon, "PING") < pings + 40:
            for path in ("/livez", "/readyz", "/metrics", "/v1/state"):
                with urllib.request.urlopen(f"{daemon.admin_url}{path}", timeout=10) as answer:
                    assert answer.status == 200
        assert daemon.log_lines()[lines:] == []
