"""Every metric of kvgate: name, type, labels, closed label values, help.

Owns: the names. Must not know: where values come from. Pure; imports ``gateway.wire.codes`` only, so that adapters, the
admin process, dashboards and documentation share it.

Adapter metrics appear three ways, never twice under one name: ``kvgate_adapter_…`` in the adapter's own registry,
``kvgate_engine_…{engine,model}`` on the gateway's /metrics (carried by heartbeats), and
``vllm:kvgate_adapter_…`` inside an engine with a metrics hook. The wire carries the short names of this table.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.metrics.outcomes import OUTCOMES
from gateway.wire.codes import (
    CopyStatus,
    DrainOutcome,
    ErrorCode,
    EvictionReason,
    Health,
    Lifecycle,
    OperationKind,
    OutcomeKind,
    Proof,
    State,
    Trigger,
)

ADAPTER_PREFIX = "kvgate_adapter_"
ENGINE_PREFIX = "kvgate_engine_"
GATEWAY_PREFIX = "kvgate_"


class Type(StrEnum):
    """Prometheus metric types in use."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Label:
    """A label and its closed set of values; ``values`` None: bounded by the table's owner (engine names, models)."""

    name: str
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Metric:
    """One metric family.

    Attributes:
        name: short: no prefix, and for counters no ``_total``.
        combinations: of label values, where not every one can be; empty: every one of closed values.
    """

    name: str
    type: Type
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ()


WAIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0)
#: 33 is an adapter's default deadline of an operation and 3 s: what operations settle by, whatever happens.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 33.0, 60.0)
REQUEST_BUCKETS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.02, 0.1, 1.0)
IDLE_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

_KIND = Label("kind", tuple(OperationKind))

#: What an adapter measures, by short name.
ADAPTER: tuple[Metric, ...] = (
    Metric("pending_stores", Type.GAUGE, "Store operations that are not settled."),
    Metric("pending_retrieves", Type.GAUGE, "Retrieve operations that are not settled."),
    Metric("retained_events", Type.GAUGE, "Distinct events held by operations that are not settled."),
    Metric("settling_operations", Type.GAUGE, "Operations given up whose running copy is still waited for."),
    Metric("doubtful_blocks", Type.GAUGE, "Blocks of such operations: a copy may still touch them."),
    Metric(
        "oldest_pending_timestamp_seconds",
        Type.GAUGE,
        "Unix time the oldest unsettled operation was submitted; 0 = none.",
    ),
    Metric(
        "gateway_state",
        Type.GAUGE,
        "1 for the adapter's present view of its gateway, else 0.",
        (Label("state", tuple(State)),),
    ),
    Metric(
        "operations",
        Type.COUNTER,
        "Operations settled, by kind and outcome.",
        (_KIND, Label("outcome", tuple(OutcomeKind))),
    ),
    Metric("operation_duration_seconds", Type.HISTOGRAM, "Time from submit to settled.", (_KIND,), DURATION_BUCKETS),
    Metric("bytes", Type.COUNTER, "Bytes copied by operations, committed or verified.", (_KIND,)),
    Metric(
        "failed_verifications",
        Type.COUNTER,
        "Chunks loaded from a slot that was another's after the copy; their blocks are computed anew.",
    ),
    Metric(
        "drains",
        Type.COUNTER,
        "Clean-ups of pending work, by what triggered them.",
        (Label("trigger", tuple(Trigger)),),
    ),
    Metric(
        "settled_by",
        Type.COUNTER,
        "Settled operations by the proof that nothing touches their blocks.",
        (Label("proof", tuple(Proof)),),
    ),
    Metric("prompt_tokens", Type.COUNTER, "Prompt tokens of requests looked up (each request once)."),
    Metric("loaded_tokens", Type.COUNTER, "Tokens really loaded from the gateway, beyond the engine's own hits."),
    Metric(
        "wasted_tokens",
        Type.COUNTER,
        "Tokens promised by a lookup and not loaded, or computed and not stored, by reason.",
        (Label("reason", ("lookup_timeout", "load_failed", "store_failed", "revoked", "released")),),
    ),
    Metric("lookup_wait_seconds", Type.HISTOGRAM, "What a request waited for its lookup.", (), WAIT_BUCKETS),
    Metric("load_wait_seconds", Type.HISTOGRAM, "What a request waited for its load.", (), WAIT_BUCKETS),
    Metric(
        "late_replies",
        Type.COUNTER,
        "Replies that came after their request was given up, or from another boot; ignored.",
    ),
    Metric("reconnects", Type.COUNTER, "Registrations after the first."),
    Metric("gateway_flaps", Type.COUNTER, "Times the gateway stopped being healthy in the adapter's view."),
    Metric(
        "invalid_samples",
        Type.COUNTER,
        "Measurements dropped because they were negative, not a number, or too large to be true.",
    ),
)

_ENGINE_LABELS = (Label("engine"), Label("model"))

#: Tables of the core whose size no other gauge tells; what leaks, leaks into one of them.
_TABLES = (
    *("sessions", "lease_deadlines", "storing_operations", "reservation_deadlines"),
    *("namespaces", "groups", "evicted_keys", "answered_commits", "answered_copies"),
    *("fenced_parties", "engine_drains", "heard_parties", "engine_totals", "settled_operations"),
)
_OPS = tuple(OUTCOMES)
_OUTCOMES = ("ok", *(str(code) for code in ErrorCode))

#: What the gateway measures, by short name. Values come from the core's snapshot, but for those of the admin process.
GATEWAY: tuple[Metric, ...] = (
    Metric("state", Type.GAUGE, "1 for the gateway's lifecycle state, else 0.", (Label("state", tuple(Lifecycle)),)),
    Metric("health", Type.GAUGE, "1 for the gateway's health, else 0.", (Label("health", tuple(Health)),)),
    Metric("ready", Type.GAUGE, "1 when the gateway serves: ready and not unhealthy."),
    Metric("health_check_ok", Type.GAUGE, "1 when the check holds, else 0.", (Label("check"),)),
    Metric("health_check_age_seconds", Type.GAUGE, "Time since the check last ran.", (Label("check"),)),
    Metric("build_info", Type.GAUGE, "Always 1.", (Label("version"),)),
    Metric("boot_timestamp_seconds", Type.GAUGE, "Unix time the core process started."),
    Metric("start_progress_ratio", Type.GAUGE, "Share of the pool reserved while starting; 1 afterwards."),
    Metric(
        "requests",
        Type.COUNTER,
        "Requests answered, by operation and outcome; only the outcomes that the operation can have.",
        (Label("op", _OPS), Label("outcome", _OUTCOMES)),
        combinations=tuple((op, str(outcome)) for op, outcomes in OUTCOMES.items() for outcome in outcomes),
    ),
    Metric(
        "request_duration_seconds",
        Type.HISTOGRAM,
        "Time from reading a request to its reply.",
        (Label("op", _OPS),),
        REQUEST_BUCKETS,
    ),
    Metric(
        "bad_messages",
        Type.COUNTER,
        "Frames refused before they reached the tables.",
        (Label("reason", ("frames", "too_large", "bad_message")),),
    ),
    Metric(
        "connections",
        Type.COUNTER,
        "Socket events: handshake_failed is a stranger; closed includes frames over the transport's limit.",
        (Label("event", ("accepted", "closed", "handshake_failed")),),
    ),
    Metric("lookup_tokens", Type.COUNTER, "Prompt tokens asked for by LOOKUP.", (Label("model"),)),
    Metric("hit_tokens", Type.COUNTER, "Tokens found by LOOKUP.", (Label("model"),)),
    Metric("lookup_evicted_keys", Type.COUNTER, "Lookups that stopped at a key evicted lately."),
    Metric("chunks", Type.GAUGE, "Slots of the pool by state.", (Label("state", ("ready", "writing", "quarantined")),)),
    Metric(
        "chunk_bytes",
        Type.GAUGE,
        "Bytes of the pool by state of their slot.",
        (Label("state", ("ready", "writing", "quarantined", "free")),),
    ),
    Metric("model_chunks", Type.GAUGE, "READY chunks by model.", (Label("model"),)),
    Metric("model_bytes", Type.GAUGE, "Bytes of READY chunks by model.", (Label("model"),)),
    Metric("pool_bytes", Type.GAUGE, "Size of the pool's data."),
    Metric("pool_allocated_bytes", Type.GAUGE, "Bytes the kernel has allocated to the pool file (st_blocks)."),
    Metric("evictions", Type.COUNTER, "Chunks that left the pool.", (Label("reason", tuple(EvictionReason)),)),
    Metric(
        "eviction_idle_seconds", Type.HISTOGRAM, "Time since last use of chunks evicted for room.", (), IDLE_BUCKETS
    ),
    Metric("leases", Type.GAUGE, "Leases that live.", (Label("kind", ("lookup", "read")),)),
    Metric("reservations", Type.GAUGE, "Reservations that live."),
    Metric("quarantined_bytes", Type.GAUGE, "Bytes of slots that wait for their owner's ABORT or proven death."),
    Metric("commits", Type.COUNTER, "Reservations that became readable chunks."),
    Metric("aborts", Type.COUNTER, "Reservations freed without becoming readable."),
    Metric("transfer_bytes", Type.COUNTER, "Bytes committed (store) and leased for reading (retrieve).", (_KIND,)),
    Metric(
        "copies",
        Type.COUNTER,
        "Chunks whose copy by the gateway ended (handle mode), by how.",
        (_KIND, Label("status", tuple(CopyStatus))),
    ),
    Metric("copying_operations", Type.GAUGE, "Stores and retrieves that the gateway copies for and has not answered."),
    Metric("mapped_workers", Type.GAUGE, "Workers whose KV cache the gateway has mapped (handle mode)."),
    Metric("exported_events", Type.GAUGE, "Events the gateway made for engines that were not released yet."),
    Metric("imported_events", Type.GAUGE, "Events of engines that the gateway holds open and waits for."),
    Metric(
        "engines", Type.GAUGE, "Engine names by state.", (Label("state", ("ready", "draining", "drained", "fenced")),)
    ),
    Metric("parties", Type.GAUGE, "Registered parties by role.", (Label("role", ("scheduler", "worker")),)),
    Metric("engine_deaths", Type.COUNTER, "Parties proven dead without unregistering."),
    Metric("queue_length", Type.GAUGE, "Work waiting in the core.", (Label("queue", ("reserve_pool",)),)),
    Metric("queue_bound", Type.GAUGE, "Bound of that queue.", (Label("queue", ("reserve_pool",)),)),
    Metric(
        "drains",
        Type.COUNTER,
        "Drains of the gateway that ended, by outcome.",
        (Label("outcome", tuple(DrainOutcome)),),
    ),
    Metric(
        "drain_remaining", Type.GAUGE, "What a drain waits for.", (Label("what", ("operations", "leases", "dirty")),)
    ),
    Metric(
        "audit_events",
        Type.COUNTER,
        "Changes asked for by operators, by action and result.",
        (
            Label("action", ("drain", "resume", "engine_drain", "engine_resume", "fence", "clear", "switch")),
            Label("result", ("ok", "refused")),
        ),
    ),
    Metric(
        "switch_mode",
        Type.GAUGE,
        "1 for each switch an operator has set, or the setting has; names beyond 32 of a scope add up as other.",
        (Label("scope"), Label("name"), Label("mode")),
    ),
    Metric(
        "table_entries",
        Type.GAUGE,
        "Entries of the core's tables: none grows for ever, whatever engines do.",
        (Label("table", _TABLES),),
    ),
    Metric("recovered_chunks", Type.GAUGE, "Chunks found READY in the pool file when this boot began."),
    Metric("loop_age_seconds", Type.GAUGE, "Time since the core's loop last came round."),
    # The admin process's own.
    Metric("scrape_success", Type.GAUGE, "1 when the core answered this scrape, else 0."),
    Metric("scrape_duration_seconds", Type.GAUGE, "Time this scrape took to read the core's snapshot."),
    Metric(
        "process_cpu_seconds", Type.COUNTER, "CPU time of a kvgate process.", (Label("process", ("core", "admin")),)
    ),
    Metric(
        "process_resident_bytes",
        Type.GAUGE,
        "Resident memory, shared pool pages included.",
        (Label("process", ("core", "admin")),),
    ),
    Metric("process_open_fds", Type.GAUGE, "Open file descriptors.", (Label("process", ("core", "admin")),)),
    Metric("process_threads", Type.GAUGE, "Threads.", (Label("process", ("core", "admin")),)),
)

#: Gateway families only the engine twins have.
ENGINE_ONLY: tuple[Metric, ...] = (
    Metric(
        "last_heartbeat_timestamp_seconds", Type.GAUGE, "Unix time of the last heartbeat of any party of this engine."
    ),
)

ADAPTER_BY_NAME = {metric.name: metric for metric in ADAPTER}
GATEWAY_BY_NAME = {metric.name: metric for metric in GATEWAY}


def engine_metrics() -> tuple[Metric, ...]:
    """The adapter's metrics as the gateway exposes them, ``engine`` and ``model`` before their own labels."""
    return tuple(Metric(m.name, m.type, m.help, _ENGINE_LABELS + m.labels, m.buckets) for m in (*ADAPTER, *ENGINE_ONLY))
