"""One vLLM with its OpenAI server, as an operator would start it, and a client that looks at the clock.

Owns: that process, its log, its HTTP. Must not know: the gateway, what the figures mean. Runs on the demo's main
thread.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

START_SECONDS = 300.0
STOP_SECONDS = 30.0
SETTLE_SECONDS = 30.0

#: No look-ups on the network, no statistics sent, and a small KV cache in main memory.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


class ServerFailedError(Exception):
    """The server ended, or did not do in time what was asked; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Answer:
    """A completion: its text, when its first token came, and how much of the prompt was not computed."""

    text: str
    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int


def connector(run_dir: Path) -> str:
    """The line of JSON that an operator adds."""
    return json.dumps(
        {
            "kv_connector": "KVGateConnector",
            "kv_connector_module_path": "adapter.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"kvgate.run_dir": str(run_dir)},
        }
    )


class Server:
    """A context manager: started on the way in, stopped on the way out."""

    def __init__(self, model: Path, run_dir: Path, log: Path, engine_name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = log
        words = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self._port)]
        words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "8192", "--block-size", "32"]
        words += ["--enable-prompt-tokens-details", "--kv-transfer-config", connector(run_dir)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **ENVIRONMENT, "KVGATE_ENGINE_NAME": engine_name},
                start_new_session=True,
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=120.0, trust_env=False)

    def __enter__(self) -> Self:
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def complete(self, tokens: list[int], max_tokens: int) -> Answer:
        """Ask for a completion of a prompt of token ids, and stream it.

        Raises:
            ServerFailedError: the server could not complete it.
        """
        body = {
            "model": "tiny",
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, first, text = time.monotonic(), 0.0, ""
        usage: dict[str, Any] = {}
        with self._client.stream("POST", "/v1/completions", json=body) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                first = first or time.monotonic() - began
                piece = json.loads(line.removeprefix("data: "))
                if "error" in piece:
                    raise ServerFailedError(f"{piece['error']}\n{self.log_tail()}")
                text += "".join(choice["text"] for choice in piece["choices"])
                usage = piece.get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(text, first, usage["prompt_tokens"], cached)

    def metric(self, name: str, **labels: str) -> float:
        """A figure on the server's own /metrics, summed over the labels that are not named."""
        text = self._client.get("/metrics").raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_settled(self) -> None:
        """Until nothing is pending, as vLLM's metrics tell.

        Raises:
            ServerFailedError: something is, for too long.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        pending = ("vllm:kvgate_adapter_pending_stores", "vllm:kvgate_adapter_pending_retrieves")
        while any(self.metric(name) for name in pending):
            if time.monotonic() > deadline:
                raise ServerFailedError(f"operations are pending after {SETTLE_SECONDS} s\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """As an operator would; with all its processes when it does not."""
        self._client.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def log_tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self._client.get("/health").is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailedError(f"vLLM did not start\n{self.log_tail()}")
            time.sleep(0.2)
