"""A vLLM in another process, driven from a test."""

import contextlib
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import processes
from tests.support.daemon import REPOSITORY

BLOCK_TOKENS = 32  # what attention on a CPU takes, or a multiple
CHUNK_TOKENS = 256
#: An engine has so long to end in order; half of it its core, where that is a process of its own.
END_SECONDS = 30.0


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of so many tokens; other seeds share no prefix."""
    ids = random.Random(seed)
    return [ids.randrange(2, 500) for _ in range(tokens)]


def connector(run_dir: Path, extra: Mapping[str, Any] | None = None, policy: str = "recompute") -> dict[str, Any]:
    """What vLLM is told: our connector, its gateway, more of its settings, and what becomes of failed loads."""
    return {
        "kv_connector": "KVGateConnector",
        "kv_connector_module_path": "adapter.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"kvgate.run_dir": str(run_dir), **(extra or {})},
    }


class VllmError(Exception):
    """The engine could not do what it was told; its last words are in the message."""


class Vllm:
    """One engine process: commands are the methods of the object that its module serves.

    Args:
        model: folder.
        kv_transfer_config: which connector, with its settings; None: none.
        module: what to run.
        environment: variables over those of this process.
        prefix: words before the command, to run it with other rights.
        settings: of vLLM, over those of the module.
    """

    def __init__(
        self,
        model: Path,
        kv_transfer_config: dict[str, Any] | None,
        *,
        module: str = "tests.engine.host",
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        told = {"model": str(model), "kv_transfer_config": kv_transfer_config, **settings}
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the engine
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, json.dumps(told)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._buffer = b""

    def wait_started(self, seconds: float = 300.0) -> Self:
        """Until it takes commands; one that does not is ended."""
        try:
            assert self._answer(seconds) == "ready"
        except BaseException:
            self.close()
            raise
        return self

    def tell(self, command: str, **arguments: Any) -> None:
        """Give a command and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, seconds: float = 300.0) -> Any:
        """The answer to a command that was given."""
        return self._answer(seconds)

    def ask(self, command: str, seconds: float = 300.0, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        self.tell(command, **arguments)
        return self._answer(seconds)

    def generate(self, tokens: Sequence[int], max_tokens: int = 1, request_id: str = "r", **options: Any) -> Any:
        """One request to its end."""
        self.ask("add", request_id=request_id, prompt=list(tokens), max_tokens=max_tokens, **options)
        return self.ask("run")[request_id]

    @property
    def pid(self) -> int:
        """Of the process that takes commands. It leads a session, in which vLLM's other processes are."""
        return self._process.pid

    def log(self) -> str:
        """All it has written so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End it, in order where it still can, and whatever is left of it. What it held goes with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # nothing more to do
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        processes.end_session(self.pid)

    def __enter__(self) -> Self:
        return self.wait_started()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(descriptor, 1 << 16) if ready else b""
            if not data:
                raise VllmError(f"{'it ended' if ready else 'no answer in time'}:\n{self.log()[-6000:]}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise VllmError(f"{reply['error']}\n{self.log()[-3000:]}")
        return reply["answer"]
