"""What an operator says to the connector: the ``kvgate.…`` keys of vLLM's ``kv_connector_extra_config``.

Owns: their names, types and defaults. Must not know: vLLM's own configuration. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from adapter.config import AdapterConfig

PREFIX = "kvgate."
DEFAULT_CHUNK_TOKENS = 256

_ADAPTER_FIELDS = frozenset(entry.name for entry in fields(AdapterConfig))


@dataclass(frozen=True)
class Settings:
    """Settings of both halves of a connector.

    Attributes:
        run_dir: the gateway's shared directory.
        chunk_tokens: tokens a chunk; None: 256, or the next multiple of vLLM's block size.
        model: name of the model in labels and keys; None: the served name.
        revision: what the weights are, where the operator knows; None: found by looking at them.
        allow_fail: start with ``kv_load_failure_policy`` ``fail`` after all: requests whose load fails end in an error.
        adapter: settings of each half.
    """

    run_dir: str
    chunk_tokens: int | None = None
    model: str | None = None
    revision: str | None = None
    allow_fail: bool = False
    adapter: AdapterConfig = field(default_factory=AdapterConfig)

    def chunk_tokens_of(self, block_tokens: int) -> int:
        """Tokens a chunk where a block of vLLM has so many.

        Raises:
            ValueError: ``chunk_tokens`` was set to what is not a multiple of them.
        """
        if self.chunk_tokens is None:
            return -(-DEFAULT_CHUNK_TOKENS // block_tokens) * block_tokens
        if self.chunk_tokens < 1 or self.chunk_tokens % block_tokens:
            raise ValueError(
                f"kvgate.chunk_tokens is {self.chunk_tokens}, expected a multiple of vLLM's block size {block_tokens}"
            )
        return self.chunk_tokens


_TYPES: dict[str, type] = {"run_dir": str, "chunk_tokens": int, "model": str, "revision": str, "allow_fail": bool}


def read(extra: Mapping[str, Any]) -> Settings:
    """The settings in vLLM's extra configuration. Keys without our prefix are not ours.

    Raises:
        ValueError: one is missing, unknown or of the wrong type; the message names it.
    """
    own: dict[str, Any] = {}
    for_adapter: dict[str, Any] = {}
    for key, value in extra.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name in _ADAPTER_FIELDS:
            for_adapter[name] = value
        elif name not in _TYPES:
            known = ", ".join(sorted(PREFIX + name for name in _ADAPTER_FIELDS | _TYPES.keys()))
            raise ValueError(f"{key} is not a setting of kvgate; there are {known}")
        elif type(value) is not _TYPES[name]:
            raise ValueError(f"{key} is {value!r}, expected a value of type {_TYPES[name].__name__}")
        else:
            own[name] = value
    if not own.get("run_dir"):
        raise ValueError("kvgate.run_dir is missing: set it to the directory that the gateway serves")
    return Settings(**own, adapter=AdapterConfig(**for_adapter))
