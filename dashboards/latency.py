"""Load and latency: what requests wait for, what gateways are asked, what they use. Values only."""

from dashboards.boards import RATE, Board, Panel, Query, Row, Unit


def _quantiles(histogram: str, by: str = "", legend: str = "", matchers: str = "") -> tuple[Query, ...]:
    """Median and p99 of a histogram; no samples where nothing was observed."""
    groups = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by ({groups}) (rate({histogram}_bucket{matchers}{RATE}))) >= 0",
            f"{legend} {name}".strip(),
        )
        for quantile, name in ((0.5, "median"), (0.99, "p99"))
    )


_WAITS = Row(
    "What requests wait",
    (
        Panel(
            "Lookup wait",
            "What a request waited for its lookup. Past 0.2 s a lookup counts as a miss.",
            Unit.SECONDS,
            _quantiles("kvgate:adapter_lookup_wait_seconds"),
            nothing="no lookups",
        ),
        Panel(
            "Load wait",
            "What a request waited for its load.",
            Unit.SECONDS,
            _quantiles("kvgate:adapter_load_wait_seconds"),
            nothing="no loads",
        ),
        Panel(
            "Operations, submit to settled",
            "Stores wait for the engine's compute, and nobody waits for them.",
            Unit.SECONDS,
            _quantiles("kvgate:adapter_operation_duration_seconds", "kind", "{{kind}}"),
            nothing="no operations",
        ),
    ),
)

_REQUESTS = Row(
    "What gateways are asked",
    (
        Panel(
            "Requests",
            "Requests answered, by operation.",
            Unit.PER_SECOND,
            (Query(f"sum by (op) (rate(kvgate_requests_total{RATE})) > 0", "{{op}}"),),
            nothing="no requests",
        ),
        Panel(
            "Requests refused",
            "Answers other than ok, by operation and reason.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (op, outcome) (rate(kvgate_requests_total{{outcome!="ok"}}{RATE})) > 0',
                    "{{op}} {{outcome}}",
                ),
            ),
            nothing="none refused",
        ),
        Panel(
            "Time to answer, p99",
            "From reading a request to its reply, by operation.",
            Unit.SECONDS,
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, op) ("
                    f"rate(kvgate_request_duration_seconds_bucket{RATE}))) >= 0",
                    "{{op}}",
                ),
            ),
            nothing="no requests",
        ),
        Panel(
            "Bad frames and strangers",
            "Frames refused before they were understood, and handshakes that failed.",
            Unit.PER_SECOND,
            (
                Query(f"sum by (reason) (rate(kvgate_bad_messages_total{RATE}))", "{{reason}}"),
                Query(f'sum(rate(kvgate_connections_total{{event="handshake_failed"}}{RATE}))', "handshake failed"),
            ),
        ),
        Panel(
            "Connections",
            "Socket connections accepted and closed.",
            Unit.PER_SECOND,
            (
                Query(
                    f'sum by (event) (rate(kvgate_connections_total{{event=~"accepted|closed"}}{RATE}))',
                    "{{event}}",
                ),
            ),
        ),
        Panel(
            "Links of adapters",
            "Registrations after the first, times a gateway stopped being healthy, replies that came too late.",
            Unit.PER_SECOND,
            (
                Query(f"sum(rate(kvgate:adapter_reconnects_total{RATE}))", "registered again"),
                Query(f"sum(rate(kvgate:adapter_gateway_flaps_total{RATE}))", "gateway lost"),
                Query(f"sum(rate(kvgate:adapter_late_replies_total{RATE}))", "late replies"),
                Query(f"sum(rate(kvgate:adapter_invalid_samples_total{RATE}))", "invalid measurements"),
            ),
        ),
    ),
)

_LIFE = Row(
    "Life",
    (
        Panel(
            "Parties and engines that died",
            "Registered halves of engines by role, and those proven dead without a word.",
            Unit.COUNT,
            (
                Query("sum by (role) (kvgate_parties)", "{{role}}"),
                Query(f"sum(increase(kvgate_engine_deaths_total{RATE}))", "deaths"),
            ),
        ),
        Panel(
            "Last heartbeat",
            "Time since each engine was last heard by its gateway; the ten longest.",
            Unit.SECONDS,
            (
                Query(
                    "topk(10, time() - (max by (node, engine) (kvgate:adapter_last_heartbeat_timestamp_seconds) > 0))",
                    "{{node}} {{engine}}",
                ),
            ),
        ),
        Panel(
            "Age of the loop and of checks",
            "Time since the core's loop came round, and since each check ran; the slowest. A check of 5 s has failed.",
            Unit.SECONDS,
            (
                Query("max(kvgate_loop_age_seconds)", "loop"),
                Query("max by (check) (kvgate_health_check_age_seconds)", "{{check}}"),
            ),
        ),
        Panel(
            "Checks that fail",
            "Nodes on which a check fails; loop, reaper and pool make a gateway unhealthy.",
            Unit.COUNT,
            (Query("sum by (check) (kvgate_health_check_ok == bool 0)", "{{check}}"),),
        ),
        Panel(
            "Starting",
            "Share of the pool that is reserved; the lowest. 1 once started.",
            Unit.SHARE,
            (Query("min(kvgate_start_progress_ratio)", "reserved"),),
        ),
        Panel(
            "Queues",
            "Work that waits in cores, and its bound.",
            Unit.COUNT,
            (
                Query("max by (queue) (kvgate_queue_length)", "{{queue}}"),
                Query("min by (queue) (kvgate_queue_bound)", "{{queue}} bound"),
            ),
        ),
    ),
)

_PROCESSES = Row(
    "Processes",
    (
        Panel(
            "CPU",
            "CPU seconds a second of each process; the ten busiest.",
            Unit.SHARE,
            (
                Query(
                    f"topk(10, sum by (node, process) (rate(kvgate_process_cpu_seconds_total{RATE})))",
                    "{{node}} {{process}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Resident memory",
            "Shared pages of the pool included; the ten largest.",
            Unit.BYTES,
            (Query("topk(10, sum by (node, process) (kvgate_process_resident_bytes))", "{{node}} {{process}}"),),
            width=6,
        ),
        Panel(
            "Open files and threads",
            "The most that a process has.",
            Unit.COUNT,
            (
                Query("max by (process) (kvgate_process_open_fds)", "{{process}} files"),
                Query("max by (process) (kvgate_process_threads)", "{{process}} threads"),
            ),
            width=6,
        ),
        Panel(
            "Scrapes",
            "What reading a core's snapshot took, at worst.",
            Unit.SECONDS,
            (Query("max(kvgate_scrape_duration_seconds)", "slowest"),),
            width=6,
        ),
    ),
)

BOARD = Board(
    "kvgate-latency",
    "kvgate / Load and latency",
    "What requests wait for, what gateways are asked, what they use.",
    (_WAITS, _REQUESTS, _LIFE, _PROCESSES),
)
