"""Whatever becomes of the gateway, of a load or of a request: the tokens are those of an engine without a cache."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gateway.wire.codes import Lifecycle
from gateway.wire.messages import Drain, Resume
from tests.engine.conftest import at_rest
from tests.engine.engine import Vllm, prompt
from tests.support.daemon import Daemon
from tests.support.poll import until


def computed(engine: Vllm, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """The tokens without a cache."""
    assert engine.ask("forget_prefixes")
    return [engine.generate(asked, max_tokens, f"c{i}", skip_reading=True)["tokens"] for i, asked in enumerate(prompts)]


def add(engine: Vllm, prompts: Sequence[list[int]], max_tokens: int) -> None:
    for i, asked in enumerate(prompts):
        engine.ask("add", request_id=f"r{i}", prompt=asked, max_tokens=max_tokens)


def tokens_of(outputs: dict[str, Any]) -> list[list[int]]:
    return [outputs[name]["tokens"] for name in sorted(outputs)]


def store(engine: Vllm, asked: list[int]) -> None:
    engine.generate(asked)
    assert engine.ask("settle")


@contextlib.contextmanager
def killed(daemon: Daemon) -> Iterator[None]:
    daemon.kill()
    yield
    daemon.start()


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    daemon.stop()
    yield
    daemon.start()


@contextlib.contextmanager
def hanging(daemon: Daemon) -> Iterator[None]:
    daemon.pause()
    yield
    daemon.go_on()


@contextlib.contextmanager
def drained(daemon: Daemon) -> Iterator[None]:
    with daemon.admin_client() as client:
        client.request(Drain(number=0, deadline_seconds=5, requested_by="test"))
        until(lambda: daemon.snapshot().state is Lifecycle.DRAINED)
        yield
        client.request(Resume(number=0, requested_by="test"))


@pytest.mark.parametrize("lost", [killed, stopped, hanging, drained])
def test_a_gateway_that_is_lost_while_requests_run(
    first: Vllm, second: Vllm, daemon: Daemon, lost: Callable[[Daemon], AbstractContextManager[None]]
) -> None:
    seed = 200 + 10 * [killed, stopped, hanging, drained].index(lost)
    prompts = [prompt(1500, seed + i) for i in range(3)]
    add(first, prompts, 24)
    first.ask("step", steps=3)

    with lost(daemon):
        outputs = first.ask("run")

    assert {output["reason"] for output in outputs.values()} == {"length"}
    assert first.ask("wait_healthy")
    assert second.ask("wait_healthy")
    assert tokens_of(outputs) == computed(first, prompts, 24)
    asked = prompt(1024, seed + 5)
    store(first, asked)
    assert second.generate(asked)["cached"] == 1024, "hits are back without restarting an engine"


def test_a_gateway_that_hangs_before_a_lookup(first: Vllm, second: Vllm, daemon: Daemon) -> None:
    asked = prompt(1024, 30)
    store(first, asked)

    with hanging(daemon):
        output = second.generate(asked, 4)

    assert output["cached"] == 0
    assert output["seconds"] < 10
    assert second.ask("wait_healthy")
    assert output["tokens"] == computed(second, [asked], 4)[0]
    assert second.ask("forget_prefixes")
    assert second.generate(asked)["cached"] == 1024


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_a_gateway_that_is_lost_between_lookup_and_load(first: Vllm, second: Vllm, daemon: Daemon, number: int) -> None:
    asked = prompt(1024, 31 + number)
    store(first, asked)
    second.ask("signal_at_load", pid=daemon.pid, number=number)

    output = second.generate(asked, 4)

    if number == signal.SIGSTOP:
        daemon.go_on()
    else:
        daemon.wait()
        daemon.start()
    assert output["seconds"] < 15, "a load settles within 3 s"
    assert second.ask("wait_healthy")
    assert output["tokens"] == computed(second, [asked], 4)[0]


def test_a_gateway_that_drains_and_resumes(first: Vllm, second: Vllm, daemon: Daemon) -> None:
    asked = prompt(1024, 32)
    store(first, asked)

    with drained(daemon):
        output = second.generate(asked, 4)

    assert output["cached"] == 0
    assert second.ask("wait_healthy")
    assert output["tokens"] == computed(second, [asked], 4)[0]
    assert second.ask("forget_prefixes")
    assert second.generate(asked)["cached"] == 1024


def test_a_reset_needs_no_gateway(first: Vllm, daemon: Daemon) -> None:
    daemon.kill()

    answer = first.ask("reset")

    daemon.start()
    assert answer["done"]
    assert answer["seconds"] < 1


@pytest.mark.parametrize("chunk", [0, 2, 7], ids=["first", "middle", "last"])
def test_a_load_that_fails(first: Vllm, second: Vllm, daemon: Daemon, chunk: int) -> None:
    asked = prompt(2048, 40 + chunk)
    store(first, asked)
    second.ask("fail_loads_from", chunk=chunk)

    output = second.generate(asked, 4)

    second.ask("fail_loads_from", chunk=-1)
    assert output["tokens"] == computed(second, [asked], 4)[0]
    at_rest(daemon)


@pytest.mark.parametrize("stage", ["lookup", "load", "store"])
def test_an_abort(first: Vllm, second: Vllm, daemon: Daemon, stage: str) -> None:
    asked = prompt(2048, 50 + len(stage))
    if stage != "store":
        store(first, asked)
    if stage == "lookup":
        daemon.pause()
    else:
        second.ask("hold_copies", hold=True)
    second.ask("add", request_id="r", prompt=asked, max_tokens=50)
    until(lambda: (second.ask("step"), stage == "lookup" or any(second.ask("facts")["pending"][:2]))[1])
    assert second.ask("facts")["tracked"] == 1

    second.ask("abort", request_id="r")

    blocks_held = second.ask("facts")["blocks_held"]
    if stage == "lookup":
        daemon.go_on()
    else:
        assert (blocks_held > 0) == (stage == "load"), "what is being written is held, and nothing else"
        second.ask("hold_copies", hold=False)
    assert second.ask("settle")
    second.ask("quiesce")
    assert second.ask("facts")["blocks_held"] == 0
    at_rest(daemon)


def test_a_request_that_ends_while_its_chunks_are_copied_holds_no_blocks(first: Vllm, daemon: Daemon) -> None:
    first.ask("hold_copies", hold=True)
    first.generate(prompt(1024, 60), 2)
    facts = first.ask("facts")
    first.ask("hold_copies", hold=False)

    assert facts["pending"][0] > 0
    assert (facts["blocks_held"], facts["requests"], facts["tracked"]) == (0, 0, 0)
    assert first.ask("settle")
    at_rest(daemon)


def test_two_engines_at_once_with_the_same_request_id(first: Vllm, second: Vllm, daemon: Daemon) -> None:
    one, other = prompt(2048, 70), prompt(2048, 71)
    store(first, one)
    store(second, other)
    for engine, asked in ((first, other), (second, one)):
        engine.ask("add", request_id="same", prompt=asked, max_tokens=8)
    first.tell("run")
    second.tell("run")
    outputs = first.hear()["same"], second.hear()["same"]

    assert [output["cached"] for output in outputs] == [2048, 2048]
    assert outputs[0]["tokens"] == computed(first, [other], 8)[0]
    assert outputs[1]["tokens"] == computed(second, [one], 8)[0]
    at_rest(daemon)
