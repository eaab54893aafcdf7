"""Control round trip: PING, one client, beside a bare echo of the same payload."""

import time

from benchmarks.echo import Echo, EchoClient
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main
from gateway.wire import codec
from gateway.wire.messages import Ping

WARM_UP = 500


def run(plan: Plan) -> list[Result]:
    """Ask in turn, one by one, so that both meet the same machine."""
    rounds = plan.rounds(10_000, 2_000)
    pings, echoes = [], []
    with gateway("64MiB").start() as daemon, Echo(daemon.base / "echo") as echo, daemon.client() as client:
        client.hello()
        payload = codec.encode(Ping(number=1, boot=client.boot))
        with EchoClient(echo.path) as bare:
            for i in range(WARM_UP + rounds):
                began = time.perf_counter()
                bare.ask(payload)
                between = time.perf_counter()
                client.request(Ping(number=0))
                ended = time.perf_counter()
                if i >= WARM_UP:
                    echoes.append(between - began)
                    pings.append(ended - between)
                if i % 500 == 0:
                    plan.progress(i, WARM_UP + rounds)
    beside = f"{micro(median(pings))}, p99 {micro(percentile(pings, 0.99))}; echo {micro(median(echoes))}"
    return [Result(what="PING, p50 / echo", measured=median(pings) / median(echoes), unit="x", bar=2, beside=beside)]


if __name__ == "__main__":
    main(run)
