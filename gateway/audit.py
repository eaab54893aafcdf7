"""The audit log: one line for each change an operator asked for, whichever way it came in.

Owns: the line and the counts of it. Must not know: what the changes do. Runs on the loop's thread.
"""

import logging

from gateway.log import AUDIT
from gateway.wire.messages import Sample

_log = logging.getLogger(AUDIT)


class AuditLog:
    """Writes audit lines and counts them by (action, result)."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def record(
        self, action: str, *, who: str, peer: str, before: str, after: str, result: str, **facts: object
    ) -> None:
        """Write one line.

        Args:
            action: drain, resume, engine_drain, engine_resume, fence, clear or switch.
            who: who asked, as the admin API knows them.
            peer: where the request came from.
            before: what the change was about, in one word: a lifecycle state, a number of chunks.
            after: the same thing, once it was done.
            result: ``ok`` or ``refused``.
            facts: what else explains it: reason, engine, model, code.
        """
        key = (action, result)
        self._counts[key] = self._counts.get(key, 0) + 1
        line = {"who": who, "peer": peer, "action": action, "before": before, "after": after, "result": result}
        _log.info("audit", extra={"facts": {**line, **{name: fact for name, fact in facts.items() if fact}}})

    def counters(self) -> list[Sample]:
        """The counts as samples of ``audit_events``."""
        return [Sample("audit_events", key, count) for key, count in self._counts.items()]
