"""kvgate as a KV connector of vLLM: its KV cache outlives the engine and is shared by all engines of the node.

Selected with ``--kv-transfer-config``; see ``docs/vllm.md``. vLLM looks the class up here. It is imported only then, so
that the parts that plan and decide can be used, and tested, without vLLM.
"""

from typing import Any

__all__ = ["KVGateConnector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adapter.vllm.connector import KVGateConnector  # noqa: PLC0415 - imports vLLM

    return KVGateConnector
