"""Whose the KV cache of a request is: the model, and within it LoRA adapters, multimodal items and cache salts.

Owns: what goes into the namespace and into the chunk keys. Must not know: lookups, blocks. vLLM's objects are read by
attribute; nothing here imports it. Runs in the scheduler half for requests, in both halves once at start.

vLLM's own block hashes are not used: they depend on the process (PYTHONHASHSEED). Neither are ids that it counts up in
each process, such as ``lora_int_id``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from adapter.identity import CacheIdentity

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

    from adapter.vllm.settings import Settings

#: Of each file of weights so many pieces are read, spread over it, and the sizes of all.
SAMPLED_PIECES = 16
SAMPLED_BYTES = 64 << 10

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_FIELDS_OF_NO_MATTER = frozenset({"_name_or_path", "transformers_version", "name_or_path"})


@dataclass(frozen=True)
class Rank:
    """Which part of the KV cache a worker holds.

    Attributes:
        shard, shard_count: the distinct part, of how many.
        replica, replicas: which of those that hold the same part, of how many.
    """

    shard: int = 0
    shard_count: int = 1
    replica: int = 0
    replicas: int = 1

    @classmethod
    def of(cls, *, tp_rank: int, tp_size: int, pp_rank: int, pp_size: int, replicas: int) -> Rank:
        """The part of one rank; consecutive tensor-parallel ranks are replicas."""
        parts = tp_size // replicas
        return cls(pp_rank * parts + tp_rank // replicas, pp_size * parts, tp_rank % replicas, replicas)


def cache_identity(config: VllmConfig, settings: Settings, rank: Rank, vllm_version: str) -> CacheIdentity:
    """The identity of the model that this vLLM serves.

    Everything that changes what the bytes of a block mean is in it, so that an engine never loads what another kind of
    engine stored: weights, architecture, types, quantization, parts, and vLLM's version, since layouts change with it.

    Raises:
        ValueError: ``kvgate.chunk_tokens`` does not fit vLLM's block size.
    """
    model, cache = config.model_config, config.cache_config
    served = model.served_model_name
    name = settings.model or (served if isinstance(served, str) else served[0])
    dtype = str(model.dtype).rpartition(".")[2]
    facts = {
        "architecture": _plain(model.hf_config.to_dict()),
        "computed_in": dtype,
        "quantization": str(model.quantization),
        "vllm": vllm_version,
    }
    return CacheIdentity(
        model=name,
        revision=settings.revision or weights_revision(config),
        dtype=dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        block_tokens=cache.block_size,
        chunk_tokens=settings.chunk_tokens_of(cache.block_size),
        shard=rank.shard,
        shard_count=rank.shard_count,
        replicas=rank.replicas,
        replica=rank.replica,
        fingerprint=blake3(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest(32),
    )


def weights_revision(config: VllmConfig) -> str:
    """What tells these weights from others: the commit they were resolved to, or a look into the files.

    Weights made up at random (``load_format`` ``dummy``) are told by their seed.
    """
    model, load_format = config.model_config, str(config.load_config.load_format)
    if load_format == "dummy":
        return f"dummy:{model.seed}"
    folder = Path(model.model)
    if folder.exists():
        return f"files:{sampled_digest(folder)}"
    commit = getattr(model.hf_config, "_commit_hash", None) or model.revision or "latest"
    return f"{model.model}@{commit}"


def sampled_digest(path: Path) -> str:
    """A digest of the weights in a folder (or of one file): their names, sizes, and pieces spread over each.

    Reading them whole would take as long as loading them. Weights that were trained further differ nearly everywhere,
    so that pieces of a megabyte a file tell them apart.
    """
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in _WEIGHTS and f.is_file())
    digest = blake3()
    for file in files:
        size = file.stat().st_size
        digest.update(msgspec.msgpack.encode([file.name if path.is_dir() else "", size]))
        with file.open("rb") as stream:
            for piece in range(SAMPLED_PIECES):
                stream.seek(piece * max(0, size - SAMPLED_BYTES) // max(1, SAMPLED_PIECES - 1))
                digest.update(stream.read(SAMPLED_BYTES))
    return digest.hexdigest(32)


class LoraFingerprints:
    """What tells the files of one LoRA adapter from others under the same name and path.

    An adapter is looked at when it is first used. One whose files change later has no fingerprint any more, because
    nobody knows which of them the engine has loaded.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[object, str]] = {}

    def of(self, lora: LoRARequest) -> str | None:
        """The fingerprint; None: its files are not here, or have changed since they were first used."""
        folder = Path(lora.lora_path)
        try:
            state = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(folder.iterdir())]
            # The id of a process tells one loading of an adapter from another here, and goes no further.
            known = self._known.get((lora.lora_name, lora.lora_path, lora.lora_int_id))
            if known is None:
                known = (state, _lora_digest(folder))
                self._known[lora.lora_name, lora.lora_path, lora.lora_int_id] = known
        except OSError:
            return None
        return known[1] if known[0] == state else None


def why_not_cached(request: Request) -> str:
    """Why this request's KV cache has no key that means the same in every process; empty where it has."""
    if request.prompt_embeds is not None or request.prompt_is_token_ids is not None or not request.prompt_token_ids:
        return "its prompt is given as embeddings"
    if request.resumable:
        return "its prompt grows while it runs"
    if any(feature.identifier is None for feature in request.mm_features):
        return "a multimodal item of it has no identifier"
    return ""


def extra_keys(request: Request, chunk_tokens: int, lora_fingerprint: str) -> list[bytes | None] | None:
    """For each full chunk of the prompt, what must agree besides its tokens; None: nothing, for none of them.

    Args:
        request: one that ``why_not_cached`` has no objection to.
        chunk_tokens: tokens a chunk.
        lora_fingerprint: of its adapter, if it has one.
    """
    lora = request.lora_request
    if lora is None and not request.mm_features:
        return None
    own = ("lora", lora.lora_name, lora.lora_path, lora_fingerprint) if lora is not None else None
    num_chunks = request.num_prompt_tokens // chunk_tokens
    return [_extra_key(request.mm_features, own, i * chunk_tokens, (i + 1) * chunk_tokens) for i in range(num_chunks)]


def _extra_key(features: Sequence[Any], own: tuple[str, ...] | None, start: int, end: int) -> bytes | None:
    parts: list[tuple[object, ...]] = [] if own is None else [own]
    for feature in features:
        position = feature.mm_position
        if position.offset < end and start < position.offset + position.length:
            # Where it lies: one item at two places of otherwise equal placeholders is not the same cache.
            parts.append(("mm", feature.identifier, position.offset - start))
    return msgspec.msgpack.encode(parts) if parts else None


def _lora_digest(folder: Path) -> str:
    config = folder / "adapter_config.json"
    settings = config.read_bytes() if config.is_file() else b""
    return blake3(settings).hexdigest(32) + sampled_digest(folder)


def _plain(value: object) -> object:
    """A model's configuration without what says nothing about its weights' meaning."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key not in _FIELDS_OF_NO_MATTER}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
