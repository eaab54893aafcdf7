"""Logs as lines on stderr, and how many there may be.

Owns: the shape of a line, and the bounds that hold whatever happens. Must not know: who logs what. Any thread.

A line has ``time`` (UTC), ``level``, ``logger``, ``event`` (one word, for machines), and whatever the caller gave as
``extra={"facts": {...}}``; an exception's traceback stands under ``traceback``. It is written as JSON or, for people,
as ``event name=value …``.

A fault can repeat itself a thousand times a second. Whoever logs need not think of that: every line passes a ``Bound``
on its way out, so that logs stay small in any fault, and a line tells how many were held back before it.
"""

import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

#: Audit lines are written whatever the level of the other logs is, and all of them.
AUDIT = "kvgate.audit"

#: Of one process of the gateway, of which there are two: a node's gateway writes twice as many at most.
LINES_A_SECOND = 10
#: The same event of the same engine for the same reason is told again after so long, and ever more rarely from then on.
FIRST_GAP_SECONDS = 10.0
LONGEST_GAP_SECONDS = 160.0
#: Different lines that are remembered. Beyond, the ones told longest ago are as good as new.
MAX_REMEMBERED = 256

_MAX_VALUE_CHARS = 1000
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_NUMBER = re.compile(r"\d+")


@dataclass
class _Told:
    """When a line like this was written last (monotonic), seen last, and when it may be written again."""

    said_at: float
    seen_at: float
    gap_seconds: float
    suppressed: int = 0


class Bound:
    """Lets few enough lines through. Thread-safe, pure: the clock is passed in.

    At most ``lines_a_second`` in any second. Of one event, engine and reason (numbers in it count as equal) one in
    ``first_gap_seconds``; while it goes on, the gap doubles up to ``LONGEST_GAP_SECONDS``, and after as long without
    it all is as at first.
    """

    def __init__(self, lines_a_second: int, first_gap_seconds: float = FIRST_GAP_SECONDS) -> None:
        self._first_gap_seconds = first_gap_seconds
        self._said_at: deque[float] = deque(maxlen=lines_a_second)
        self._told: dict[tuple[str, str, str], _Told] = {}
        self._overflown = 0
        self._lock = threading.Lock()

    def admit(self, event: str, facts: Mapping[str, object], now: float) -> dict[str, int] | None:
        """None: hold this line back. Else let it through, and tell with it what was held back before.

        Args:
            event: of the line.
            facts: of the line; ``engine`` and ``reason`` are looked at.
            now: monotonic.

        Returns:
            ``suppressed``: lines like it since the last of them. ``suppressed_others``: lines of any kind that were
            too many in their second. Each is there only where it is not 0.
        """
        key = (event, str(facts.get("engine", "")), _NUMBER.sub("#", str(facts.get("reason", ""))))
        with self._lock:
            told = self._told.get(key)
            if told is not None and now < told.said_at + told.gap_seconds:
                told.seen_at = now
                told.suppressed += 1
                return None
            if len(self._said_at) == self._said_at.maxlen and now - self._said_at[0] < 1.0:
                self._overflown += 1
                return None
            self._said_at.append(now)
            counts = {"suppressed": told.suppressed if told else 0, "suppressed_others": self._overflown}
            self._overflown = 0
            self._remember(key, told, now)
        return {name: count for name, count in counts.items() if count}

    def _remember(self, key: tuple[str, str, str], told: _Told | None, now: float) -> None:
        gap = self._first_gap_seconds
        if told is not None:  # put at the end: those told longest ago stand first
            is_lasting = now - told.seen_at < LONGEST_GAP_SECONDS
            gap = min(2 * told.gap_seconds, LONGEST_GAP_SECONDS) if is_lasting else gap
            del self._told[key]
        elif len(self._told) >= MAX_REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told[key] = _Told(said_at=now, seen_at=now, gap_seconds=gap)


class Bounded(logging.Filter):
    """Puts a handler under a ``Bound``; audit lines pass."""

    def __init__(self, bound: Bound, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._bound = bound
        self._clock = clock

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; what was held back before it becomes one of its facts."""
        if record.name == AUDIT:
            return True
        facts = _facts(record)
        counts = self._bound.admit(str(record.msg), facts, self._clock())
        if counts is None:
            return False
        record.facts = {**facts, **counts}
        return True


class JsonLines(logging.Formatter):
    """One record, one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; what JSON does not know is written as text."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= _facts(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_as_text)


class TextLines(logging.Formatter):
    """One record, one line for people; a traceback follows it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line = f"{_time(record)} {record.levelname.lower()} {readable(record.getMessage(), _facts(record))}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def readable(event: str, facts: Mapping[str, object]) -> str:
    """``event name=value …``; a value with spaces or quotes is written as JSON writes a text."""
    return " ".join((event, *(f"{name}={_shown(value)}" for name, value in facts.items())))


def configure(level: str, line_format: Literal["json", "text"] = "json") -> None:
    """Send all logs of this process to stderr, bounded, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if line_format == "text" else JsonLines())
    handler.addFilter(Bounded(Bound(LINES_A_SECOND)))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(AUDIT).setLevel(logging.INFO)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _facts(record: logging.LogRecord) -> dict[str, object]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, dict) else {}


def _as_text(value: object) -> str:
    """A value as people read it; ids and the like, which are bytes, by their hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _shown(value: object) -> str:
    text = _as_text(value)[:_MAX_VALUE_CHARS]
    return text if _PLAIN.fullmatch(text) and text.isascii() else json.dumps(text)
