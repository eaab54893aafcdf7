"""Transfers and drain: what is pending and why, how it ends, and how far a drain is. Values only."""

from dashboards.boards import RATE, Board, Panel, Query, Row, Unit

_PENDING = Row(
    "Pending",
    (
        Panel(
            "Pending stores",
            "Store operations that are not settled; the ten engines with most.",
            Unit.COUNT,
            (Query("topk(10, sum by (node, engine) (kvgate:adapter_pending_stores))", "{{node}} {{engine}}"),),
        ),
        Panel(
            "Pending retrieves",
            "Retrieve operations that are not settled; the ten engines with most.",
            Unit.COUNT,
            (Query("topk(10, sum by (node, engine) (kvgate:adapter_pending_retrieves))", "{{node}} {{engine}}"),),
        ),
        Panel(
            "Retained events",
            "Device events that operations hold; the ten engines with most. At rest it is 0.",
            Unit.COUNT,
            (Query("topk(10, sum by (node, engine) (kvgate:adapter_retained_events))", "{{node}} {{engine}}"),),
        ),
        Panel(
            "Oldest pending",
            "Age of the oldest operation that is not settled, 0: none; the ten oldest. Past 40 s it pages.",
            Unit.SECONDS,
            (
                Query(
                    "topk(10, max by (node, engine) (kvgate:adapter_oldest_pending_age_seconds))",
                    "{{node}} {{engine}}",
                ),
            ),
        ),
        Panel(
            "Settling",
            "Operations that were given up and whose running copy is waited for: milliseconds, unless a copy hangs.",
            Unit.COUNT,
            (Query("topk(10, sum by (node, engine) (kvgate:adapter_settling_operations))", "{{node}} {{engine}}"),),
        ),
        Panel(
            "Reservations and leases",
            "Rights to write and to read that live in the gateways.",
            Unit.COUNT,
            (
                Query("sum(kvgate_reservations)", "reservations"),
                Query("sum by (kind) (kvgate_leases)", "{{kind}} leases"),
            ),
        ),
    ),
)

_ENDS = Row(
    "How they end",
    (
        Panel(
            "Stores by outcome",
            "Store operations that settled.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (outcome) (rate(kvgate:adapter_operations_total{{kind="store"}}{RATE}))',
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Retrieves by outcome",
            "Retrieve operations that settled. Whatever is not loaded is computed.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (outcome) (rate(kvgate:adapter_operations_total{{kind="retrieve"}}{RATE}))',
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Bytes copied",
            "Bytes that adapters copied and that were committed or verified.",
            Unit.BYTES_PER_SECOND,
            (Query(f"sum by (kind) (rate(kvgate:adapter_bytes_total{RATE}))", "{{kind}}"),),
        ),
        Panel(
            "Settled by which proof",
            "Why nothing can touch the blocks of a settled operation any more.",
            Unit.PER_SECOND,
            (Query(f"sum by (proof) (rate(kvgate:adapter_settled_by_total{RATE}))", "{{proof}}"),),
        ),
        Panel(
            "Failed verifications",
            "Chunks that had become another's while they were loaded. They are not used.",
            Unit.PER_SECOND,
            (Query(f"sum by (node) (rate(kvgate:adapter_failed_verifications_total{RATE}))", "{{node}}"),),
        ),
        Panel(
            "Commits and aborts",
            "Reservations that became readable, and that were given back.",
            Unit.PER_SECOND,
            (
                Query(f"sum(rate(kvgate_commits_total{RATE}))", "commits"),
                Query(f"sum(rate(kvgate_aborts_total{RATE}))", "aborts"),
            ),
        ),
    ),
)

_DRAIN = Row(
    "Drain",
    (
        Panel(
            "Gateways on their way",
            "Gateways by lifecycle state.",
            Unit.COUNT,
            (Query("sum by (state) (kvgate_state)", "{{state}}"),),
        ),
        Panel(
            "What drains wait for",
            "Operations, leases and chunks not yet flushed that keep a drain from its end.",
            Unit.COUNT,
            (Query("sum by (node, what) (kvgate_drain_remaining)", "{{node}} {{what}}"),),
        ),
        Panel(
            "Drains that ended",
            "By outcome. deadline_exceeded and forced cut what was under way.",
            Unit.COUNT,
            (Query(f"sum by (outcome) (increase(kvgate_drains_total{RATE}))", "{{outcome}}"),),
        ),
        Panel(
            "Clean-ups in adapters",
            "Times an adapter wound down its pending work, by what began it.",
            Unit.COUNT,
            (Query(f"sum by (trigger) (increase(kvgate:adapter_drains_total{RATE}))", "{{trigger}}"),),
        ),
        Panel(
            "Switches",
            "What operators have switched off, for good: how many nodes have it, by what and to which mode.",
            Unit.COUNT,
            (Query("sum by (scope, name, mode) (kvgate_switch_mode)", "{{scope}} {{name}} {{mode}}"),),
            nothing="nothing is switched off",
        ),
        Panel(
            "Engines by state",
            "Engines as the gateways see them; a fenced one may not come back.",
            Unit.COUNT,
            (Query("sum by (state) (kvgate_engines)", "{{state}}"),),
        ),
        Panel(
            "What operators did",
            "Changes asked for, by action and result.",
            Unit.COUNT,
            (Query(f"sum by (action, result) (increase(kvgate_audit_events_total{RATE}))", "{{action}} {{result}}"),),
        ),
    ),
)

_HANDLES = Row(
    "Copies by the gateway (handle mode)",
    (
        Panel(
            "Chunks copied",
            "Chunks whose copy by the gateway ended, by how. 0 where adapters copy themselves.",
            Unit.PER_SECOND,
            (Query(f"sum by (kind, status) (rate(kvgate_copies_total{RATE}))", "{{kind}} {{status}}"),),
        ),
        Panel(
            "Under way",
            "Operations that gateways copy for, and workers whose KV cache they have mapped.",
            Unit.COUNT,
            (
                Query("sum(kvgate_copying_operations)", "operations"),
                Query("sum(kvgate_mapped_workers)", "workers mapped"),
            ),
        ),
        Panel(
            "Events across processes",
            "Events made for engines and not released yet, and events of engines that are held open; 0 at rest.",
            Unit.COUNT,
            (
                Query("sum by (node) (kvgate_exported_events)", "{{node}} exported"),
                Query("sum by (node) (kvgate_imported_events)", "{{node}} imported"),
            ),
        ),
    ),
)

BOARD = Board(
    "kvgate-transfers",
    "kvgate / Transfers and drain",
    "What is pending and why, how operations end, how far a drain is.",
    (_PENDING, _ENDS, _DRAIN, _HANDLES),
)
