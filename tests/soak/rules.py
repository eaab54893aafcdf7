"""What each series of a soak may do. Owns: the rules, by the names of series. Pure.

Bounds are those of the tables' owners. Everything else that grows with the number of requests, engines, drains or
watchers is a leak, however slow.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase

from adapter.prompts import MAX_KEPT_PROMPTS
from adapter.reports import MAX_FAILED
from adapter.transfer.transfers import MAX_SETTLED_KEPT
from gateway.admin.events import MAX_POINTS
from gateway.core.chunks import MAX_EVICTED_KEYS
from gateway.core.stores import MAX_ANSWERED_COMMITS
from gateway.engines import MAX_SETTLED
from tests.chaos.engine import NUM_BLOCKS
from tests.soak.flatness import Rule

#: A few entries an hour may be a coincidence; what leaks with each request makes thousands.
_TABLE = Rule(per_hour=20, step=20)
_RECENT = Rule(per_hour=500, step=3000)
_TRANSIENT = Rule(per_hour=20, step=20, is_empty_at_rest=True)

#: The first pattern that fits decides.
RULES: tuple[tuple[str, Rule], ...] = (
    # A hundred thousand requests that lose eighty bytes each are 8 MiB. The step is the allocators': arenas of the
    # threads, and tables with a bound on their way to it.
    ("* resident", Rule("MiB", per_hour=8, step=6)),
    ("* descriptors", Rule(per_hour=3, step=10)),
    ("* threads", Rule(per_hour=1, step=4)),
    ("* mappings", Rule(per_hour=20, step=40)),
    ("files *", Rule(per_hour=3, step=10)),
    # Histories: full sooner or later, and no longer than told.
    ("gateway settled_operations", Rule(bound=MAX_SETTLED)),
    ("gateway evicted_keys", Rule(bound=MAX_EVICTED_KEYS)),
    ("gateway answered_commits", Rule(bound=MAX_ANSWERED_COMMITS)),
    ("admin points", Rule(bound=MAX_POINTS)),
    ("* worker told_operations", Rule(bound=MAX_SETTLED_KEPT)),
    ("* worker settled_operations", Rule(bound=MAX_SETTLED_KEPT)),
    ("* worker failed_requests", Rule(bound=MAX_FAILED)),
    ("* worker failed_blocks", Rule(bound=NUM_BLOCKS)),
    ("* scheduler prompts", Rule(bound=MAX_KEPT_PROMPTS, is_empty_at_rest=True)),
    # Remembered until their time, half a minute at most: as many as came in it, so they follow the load.
    ("gateway answered_copies", _RECENT),
    ("* lease_deadlines", _RECENT),
    ("* reservation_deadlines", _RECENT),
    ("* request_deadlines", _RECENT),
    # As many as there are engines, which are known for an hour after they left.
    ("gateway engine_totals", _TABLE),
    ("gateway namespaces", _TABLE),
    ("gateway groups", _TABLE),
    # A heartbeat may be on its way at any time.
    ("* requests", _TABLE),
    ("* posted_calls", _TABLE),
    ("*", _TRANSIENT),
)


def rule_for(name: str) -> Rule:
    """The rule of a series."""
    return next(rule for pattern, rule in RULES if fnmatchcase(name, pattern))


def idle_rules(names: Collection[str]) -> list[str]:
    """Patterns of rules that are of none of these series: a name has changed, or a table is not told any more."""
    deciding = {next(pattern for pattern, _ in RULES if fnmatchcase(name, pattern)) for name in names}
    return [pattern for pattern, _ in RULES if pattern not in deciding]
