"""What the demo and its engine processes tell each other, a line of JSON each. Owns: these types, nothing else."""

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What an engine is told: among others to serve requests ``index``, ``index + step``, … until it is stopped."""

    run_dir: str
    name: str
    index: int
    step: int
    layers: int
    trace: str = ""


class Figures(msgspec.Struct, kw_only=True):
    """What an engine has done so far, and its adapters' gauges. ``event`` is ``started``, ``served`` or ``idle``."""

    event: str = "started"
    state: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    failed_loads: int = 0
    wrong_bytes: int = 0
    pending_stores: int = 0
    pending_retrieves: int = 0
    retained_events: int = 0
    stored_bytes: int = 0
    store_seconds: float = 0.0
    retrieved_bytes: int = 0
    retrieve_seconds: float = 0.0
