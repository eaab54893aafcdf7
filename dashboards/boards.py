"""What a dashboard is made of: plain values that the four dashboards are written in.

Owns: the words. Must not know: Grafana. Pure.

Queries are written without the dashboard's variables: every selector is given them on the way out, as far as its metric
has such labels (``dashboards.grafana``).
"""

from dataclasses import dataclass
from enum import StrEnum

#: The window of a rate: at least four scrapes, however far one has zoomed in.
RATE = "[$__rate_interval]"


class Unit(StrEnum):
    """Grafana's units."""

    COUNT = "short"
    BYTES = "bytes"
    BYTES_PER_SECOND = "Bps"
    SECONDS = "s"
    PER_SECOND = "ops"
    TOKENS_PER_SECOND = "suffix: tok/s"
    SHARE = "percentunit"
    AGO = "dateTimeFromNow"


class Kind(StrEnum):
    """How a panel shows its queries."""

    LINES = "timeseries"
    NOW = "stat"
    TABLE = "table"


@dataclass(frozen=True)
class Query:
    """One query and the name of its series, in which ``{{label}}`` stands for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel.

    ``nothing`` is what it says when its queries rightly have no series: only then may they have none. ``red_from``: the
    value that is trouble; None: no value is.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    nothing: str = ""
    red_from: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels side by side, from left to right, 24 wide."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """One dashboard. ``uid`` is its address for ever: links and bookmarks have it."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
