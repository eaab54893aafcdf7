"""A client that asks at a pace: LOOKUP of the gateway or the same bytes of an echo, as its standard input tells.

Owns: that process and how it is told. Must not know: what the times mean.

``python -m benchmarks.paced RUN_DIR ECHO NUMBER KEYS`` looks up the chunks [NUMBER x KEYS, (NUMBER + 1) x KEYS). Each
line it reads is a ``Lap``; the line it writes has the seconds that each request took.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from benchmarks.echo import EchoClient
from gateway.wire import codec
from gateway.wire.codes import Role
from gateway.wire.messages import Found, Lookup
from tests.support.party import NAMESPACE, RawParty, chunk_key


class Lap(msgspec.Struct, frozen=True):
    """Ask from ``begins_at`` on (monotonic), every ``interval_seconds``, so often."""

    asks_gateway: bool
    begins_at: float
    interval_seconds: float
    requests: int


class PacedClient:
    """The process, seen by the row that runs it."""

    def __init__(self, run_dir: Path, echo: Path, number: int, num_keys: int) -> None:
        words = [sys.executable, "-m", __name__, str(run_dir), str(echo), str(number), str(num_keys)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read()  # it is registered

    def tell(self, lap: Lap) -> None:
        """Let it run a lap."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(lap) + b"\n")
        self._process.stdin.flush()

    def read(self) -> list[float]:
        """The seconds of the last lap's requests; waits for its end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a client has ended"
        return msgspec.json.decode(line, type=list[float])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _serve(run_dir: Path, echo: Path, number: int, num_keys: int) -> None:
    with RawParty(run_dir, Role.SCHEDULER, group=f"group-{number}") as party, EchoClient(echo) as bare:
        party.register()
        keys = tuple(chunk_key(i) for i in range(number * num_keys, (number + 1) * num_keys))
        lookup = Lookup(number=0, party=party.id, session=1, namespace=NAMESPACE, keys=keys)
        payload = codec.encode(lookup)

        def ask_gateway() -> None:
            found = party.dealer.ask(lookup)
            assert isinstance(found, Found), found
            assert found.chunks == num_keys, found

        def ask_echo() -> None:
            bare.ask(payload)

        _say([])
        for line in sys.stdin:
            lap = msgspec.json.decode(line, type=Lap)
            _say(_run(lap, ask_gateway if lap.asks_gateway else ask_echo))


def _run(lap: Lap, ask: Callable[[], None]) -> list[float]:
    seconds = []
    for i in range(lap.requests):
        time.sleep(max(0.0, lap.begins_at + i * lap.interval_seconds - time.monotonic()))
        began = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - began)
    return seconds


def _say(seconds: list[float]) -> None:
    sys.stdout.write(msgspec.json.encode(seconds).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
