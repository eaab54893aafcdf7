"""The cache: what is found, what is kept, what is lost for want of room. Values only."""

from dashboards.boards import RATE, Board, Kind, Panel, Query, Row, Unit

_HITS = Row(
    "Hits",
    (
        Panel(
            "Tokens found, by model",
            "Prompt tokens that lookups asked for, and those that were there.",
            Unit.TOKENS_PER_SECOND,
            (
                Query(f"sum by (model) (rate(kvgate_lookup_tokens_total{RATE}))", "{{model}} asked"),
                Query(f"sum by (model) (rate(kvgate_hit_tokens_total{RATE}))", "{{model}} found"),
            ),
        ),
        Panel(
            "Hit ratio, by model",
            "Tokens found, of those asked for.",
            Unit.SHARE,
            (
                Query(
                    f"sum by (model) (rate(kvgate_hit_tokens_total{RATE}))"
                    f" / (sum by (model) (rate(kvgate_lookup_tokens_total{RATE})) > 0)",
                    "{{model}}",
                ),
            ),
            nothing="no lookups",
        ),
        Panel(
            "Evicted, then missed",
            "Lookups that ended at a chunk that had been evicted lately, of all lookups. Past 20 % the pool is small.",
            Unit.SHARE,
            (
                Query(
                    f"sum(rate(kvgate_lookup_evicted_keys_total{RATE}))"
                    f' / (sum(rate(kvgate_requests_total{{op="LOOKUP",outcome="ok"}}{RATE})) > 0)',
                    "of lookups",
                ),
            ),
            nothing="no lookups",
        ),
    ),
)

_CAPACITY = Row(
    "Capacity",
    (
        Panel(
            "Pool by state",
            "Bytes of all pools, by the state of their slots.",
            Unit.BYTES,
            (
                Query("sum by (state) (kvgate_chunk_bytes)", "{{state}}"),
                Query("sum(kvgate_pool_bytes)", "pool"),
                Query("sum(kvgate_pool_allocated_bytes)", "allocated"),
            ),
        ),
        Panel(
            "Bytes by model",
            "Readable chunks.",
            Unit.BYTES,
            (Query("sum by (model) (kvgate_model_bytes)", "{{model}}"),),
        ),
        Panel(
            "Chunks",
            "Slots by state, and readable chunks by model.",
            Unit.COUNT,
            (
                Query("sum by (state) (kvgate_chunks)", "{{state}}"),
                Query("sum by (model) (kvgate_model_chunks)", "{{model}}"),
            ),
        ),
        Panel(
            "Quarantine",
            "Share of each pool that waits for an engine's abort or proven death; the ten largest. 10 % alerts.",
            Unit.SHARE,
            (Query("topk(10, kvgate_quarantined_bytes / kvgate_pool_bytes)", "{{node}}"),),
        ),
        Panel(
            "Found at start",
            "Chunks that each gateway found in its pool when it started: what a restart kept.",
            Unit.COUNT,
            (Query("sum by (node) (kvgate_recovered_chunks)", "{{node}}"),),
            Kind.NOW,
        ),
        Panel(
            "Bytes stored and leased",
            "As the gateways see them: committed, and leased for reading.",
            Unit.BYTES_PER_SECOND,
            (Query(f"sum by (kind) (rate(kvgate_transfer_bytes_total{RATE}))", "{{kind}}"),),
        ),
    ),
)

_EVICTION = Row(
    "Eviction",
    (
        Panel(
            "Evictions",
            "Chunks that left, by reason. Capacity is normal in a full pool.",
            Unit.PER_SECOND,
            (Query(f"sum by (reason) (rate(kvgate_evictions_total{RATE}))", "{{reason}}"),),
        ),
        Panel(
            "Idle time at eviction",
            "How long chunks had not been used when they were evicted for room: of one in ten, and of half, at most.",
            Unit.SECONDS,
            tuple(
                Query(
                    f"histogram_quantile({quantile},"
                    f" sum by (le) (rate(kvgate_eviction_idle_seconds_bucket{RATE}))) >= 0",
                    legend,
                )
                for quantile, legend in ((0.1, "p10"), (0.5, "median"))
            ),
            nothing="no evictions",
        ),
        Panel(
            "Evicted within five minutes of use",
            "Chunks evicted for room that had been used within five minutes.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (node) (rate(kvgate_eviction_idle_seconds_bucket{{le=~"300|300.0"}}{RATE}))',
                    "{{node}}",
                ),
            ),
        ),
    ),
)

BOARD = Board(
    "kvgate-cache",
    "kvgate / Cache",
    "What is found, what is kept, and what is lost for want of room.",
    (_HITS, _CAPACITY, _EVICTION),
)
