"""Logs as JSON lines on stderr.

Owns: the shape of a line. Must not know: who logs what. Any thread.

A line has ``time`` (UTC), ``level``, ``logger``, ``event`` (one word, for machines), and whatever the caller gave as
``extra={"facts": {...}}``; an exception's traceback stands under ``traceback``.
"""

import json
import logging
import sys
from datetime import UTC, datetime

#: Audit lines are written whatever the level of the other logs is.
AUDIT = "kvgate.audit"


class JsonLines(logging.Formatter):
    """One record, one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; what JSON does not know is written as text."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        facts = getattr(record, "facts", None)
        if isinstance(facts, dict):
            line |= facts
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send all logs of this process to stderr as JSON lines, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(AUDIT).setLevel(logging.INFO)
