"""What tells one KV cache from another in vLLM: model, weights, ranks, adapters, items."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter import Geometry
from adapter.geometry import LayerGeometry
from adapter.vllm.identity import (
    SAMPLED_BYTES,
    LoraFingerprints,
    Rank,
    cache_identity,
    extra_keys,
    sampled_digest,
    weights_revision,
)
from adapter.vllm.settings import Settings
from tests.adapter.vllm.objects import item, lora, request

GEOMETRY = Geometry("LBHNC", "bfloat16", 64, (LayerGeometry(1, 512),))
CHUNK = 32


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(os.urandom(40 * SAMPLED_BYTES))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def config(model: str, **changes: object) -> SimpleNamespace:
    architecture = {"layers": 2, "rope": {"factor": 1.0}, "_name_or_path": "anywhere", "transformers_version": "1"}
    model_config = {
        "model": model,
        "served_model_name": ["chat", "other"],
        "dtype": "torch.bfloat16",
        "quantization": None,
        "revision": None,
        "seed": 0,
        "hf_config": SimpleNamespace(to_dict=lambda: {**architecture, **changes.pop("architecture", {})}),
    }
    cache = {"block_size": 16, "cache_dtype": "auto"}
    load = {"load_format": "auto"}
    for part in (model_config, cache, load):
        part.update({name: changes[name] for name in changes.keys() & part.keys()})
    return SimpleNamespace(
        model_config=SimpleNamespace(**model_config),
        cache_config=SimpleNamespace(**cache),
        load_config=SimpleNamespace(**load),
    )


def namespace(settings: Settings = Settings("d"), version: str = "0.32", rank: Rank = Rank(), **changes) -> bytes:  # noqa: B008
    return cache_identity(config(**changes), settings, rank, version).namespace(GEOMETRY)


def test_the_served_name_is_the_label(weights: Path) -> None:
    identity = cache_identity(config(str(weights)), Settings("d"), Rank(), "0.32")

    assert (identity.model, identity.dtype, identity.block_tokens, identity.chunk_tokens) == (
        "chat",
        "bfloat16",
        16,
        256,
    )


def test_the_same_model_in_another_place_is_the_same(weights: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in weights.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    changed = {"architecture": {"_name_or_path": "elsewhere", "transformers_version": "2"}}

    assert namespace(model=str(moved), **changed) == namespace(model=str(weights))


@pytest.mark.parametrize(
    "changes",
    [
        {"served_model_name": "another"},
        {"dtype": "torch.float16"},
        {"cache_dtype": "fp8_e4m3"},
        {"quantization": "awq"},
        {"block_size": 32},
        {"architecture": {"rope": {"factor": 2.0}}},
        {"version": "0.33"},
        {"settings": Settings("d", chunk_tokens=512)},
        {"settings": Settings("d", revision="mine")},
        {"settings": Settings("d", model="mine")},
        {"rank": Rank(0, 2)},
    ],
    ids=str,
)
def test_whatever_changes_the_bytes_changes_the_namespace(weights: Path, changes: dict) -> None:
    assert namespace(model=str(weights), **changes) != namespace(model=str(weights))


@pytest.mark.parametrize("where", [0, 0.37, 0.999], ids=["begin", "middle", "end"])
def test_other_weights_of_the_same_size_are_told_apart(weights: Path, where: float) -> None:
    before = weights_revision(config(str(weights)))
    file = weights / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = int(where * len(data))
    trained = bytes(byte ^ 1 for byte in data[start : start + 4 * SAMPLED_BYTES])  # further training changes all
    data[start : start + 4 * SAMPLED_BYTES] = trained
    file.write_bytes(bytes(data))

    assert weights_revision(config(str(weights))) != before


def test_files_that_are_no_weights_do_not_matter(weights: Path) -> None:
    before = sampled_digest(weights)
    (weights / "tokenizer.json").write_text('{"a": 1}')
    assert sampled_digest(weights) == before
    (weights / "more.safetensors").write_bytes(b"")
    assert sampled_digest(weights) != before


def test_weights_that_are_not_here_are_told_by_their_commit() -> None:
    assert weights_revision(config("org/model", revision="abc")) == "org/model@abc"
    named = config("org/model", revision="main")
    named.model_config.hf_config._commit_hash = "f00"
    assert weights_revision(named) == "org/model@f00"


def test_random_weights_are_told_by_their_seed(weights: Path) -> None:
    one, other = (weights_revision(config(str(weights), load_format="dummy", seed=seed)) for seed in (1, 2))

    assert one != other


@pytest.mark.parametrize(
    ("tp", "pp", "replicas", "parts"),
    [
        (1, 1, 1, [(0, 1, 0)]),
        (4, 1, 1, [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]),
        (4, 1, 2, [(0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)]),
        (2, 1, 2, [(0, 1, 0), (0, 1, 1)]),
        (2, 2, 1, [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 4, 0)]),
    ],
)
def test_each_rank_has_its_part(tp: int, pp: int, replicas: int, parts: list[tuple[int, int, int]]) -> None:
    ranks = [
        Rank.of(tp_rank=t, tp_size=tp, pp_rank=p, pp_size=pp, replicas=replicas) for p in range(pp) for t in range(tp)
    ]

    assert [(rank.shard, rank.shard_count, rank.replica) for rank in ranks] == parts
    assert {rank.replicas for rank in ranks} == {replicas}


# -- requests


def test_a_plain_request_needs_no_extra_keys() -> None:
    assert extra_keys(request(cache_salt="tenant"), CHUNK, "") is None


def test_an_adapter_is_in_every_chunk_by_name_path_and_files() -> None:
    one = extra_keys(request(lora=lora("/a", "x", number=1)), CHUNK, "f")

    assert one is not None
    assert len(one) == 100 // CHUNK
    assert len(set(one)) == 1
    assert extra_keys(request(lora=lora("/a", "x", number=9)), CHUNK, "f") == one, "a process's own number says nothing"
    for other, fingerprint in ((lora("/b", "x"), "f"), (lora("/a", "y"), "f"), (lora("/a", "x"), "g")):
        assert extra_keys(request(lora=other), CHUNK, fingerprint) != one


def test_an_item_is_in_the_chunks_it_lies_in_with_its_place() -> None:
    keys = extra_keys(request(items=(item("picture", 40, 30),)), CHUNK, "")

    assert keys is not None
    assert keys[0] is None
    assert None not in keys[1:]
    assert keys[1] != keys[2], "it begins in the one and goes on in the other"
    assert extra_keys(request(items=(item("picture", 41, 30),)), CHUNK, "") != keys
    assert extra_keys(request(items=(item("drawing", 40, 30),)), CHUNK, "") != keys


@pytest.mark.parametrize(("offset", "length", "chunks"), [(0, 32, {0}), (31, 2, {0, 1}), (32, 1, {1}), (96, 4, set())])
def test_edges_of_items(offset: int, length: int, chunks: set[int]) -> None:
    keys = extra_keys(request(items=(item("x", offset, length),)), CHUNK, "")

    assert keys is not None
    assert {i for i, key in enumerate(keys) if key is not None} == chunks


@pytest.fixture
def adapter_files(tmp_path: Path) -> Path:
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(b"a" * 1000)
    return folder


def test_an_adapters_fingerprint_is_of_its_files(adapter_files: Path) -> None:
    one = LoraFingerprints().of(lora(str(adapter_files)))

    assert one
    assert LoraFingerprints().of(lora(str(adapter_files), "another", 5)) == one
    (adapter_files / "adapter_config.json").write_text('{"r": 9}')
    assert LoraFingerprints().of(lora(str(adapter_files))) != one


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"b" * 1000),
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        lambda folder: (folder / "more.bin").write_bytes(b""),
    ],
)
def test_an_adapter_whose_files_change_has_none_any_more(adapter_files: Path, change: Callable[[Path], object]) -> None:
    fingerprints = LoraFingerprints()
    loaded = lora(str(adapter_files))
    assert fingerprints.of(loaded) == fingerprints.of(loaded)
    change(adapter_files)
    os.utime(adapter_files / "adapter_config.json", ns=(1, 1))

    assert fingerprints.of(loaded) is None, "nobody knows which of them the engine has loaded"
    assert fingerprints.of(lora(str(adapter_files), number=2)), "one that is loaded after the change is known"


def test_an_adapter_that_is_not_here_has_none(tmp_path: Path) -> None:
    assert LoraFingerprints().of(lora(str(tmp_path / "org" / "name"))) is None
