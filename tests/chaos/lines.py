"""What an engine under chaos tells: a line of JSON every so often. Owns: this type, nothing else."""

import msgspec


class Told(msgspec.Struct, kw_only=True):
    """What an engine process has done so far, and what is pending in it. ``event`` is ``runs`` or ``idle``.

    ``tables``: entries of its adapters' tables, by half and name.
    """

    event: str = "runs"
    state: str = ""
    requests: int = 0
    hit_chunks: int = 0
    loaded_chunks: int = 0
    stored: int = 0
    wrong_chunks: int = 0
    late_loads: int = 0
    pending_stores: int = 0
    pending_retrieves: int = 0
    retained_events: int = 0
    tables: dict[str, int] = {}
