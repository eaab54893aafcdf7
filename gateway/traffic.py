"""What crossed the sockets: requests by operation and outcome, their durations, and what never became a request.

Owns: these counts. Must not know: messages' meanings, sockets. Runs on the loop's thread.
"""

from bisect import bisect_left

from gateway.metrics.outcomes import OK, UNKNOWN
from gateway.metrics.table import REQUEST_BUCKETS
from gateway.wire.messages import HistogramSample, Sample

__all__ = ["OK", "UNKNOWN", "Traffic"]


class Traffic:
    """Counts that only grow."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], int] = {}
        self._durations: dict[str, list[int]] = {}
        self._duration_sums: dict[str, float] = {}
        self._bad_messages: dict[str, int] = {}
        self._connections: dict[str, int] = {}

    def answered(self, op: str, outcome: str, seconds: float) -> None:
        """A request got its reply, ``seconds`` after it was read."""
        key = (op, outcome)
        self._requests[key] = self._requests.get(key, 0) + 1
        counts = self._durations.get(op)
        if counts is None:
            counts = self._durations[op] = [0] * (len(REQUEST_BUCKETS) + 1)
        counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        self._duration_sums[op] = self._duration_sums.get(op, 0.0) + seconds

    def bad_message(self, reason: str) -> None:
        """A frame was refused before it reached the tables: ``frames``, ``too_large`` or ``bad_message``."""
        self._bad_messages[reason] = self._bad_messages.get(reason, 0) + 1

    def connection(self, event: str) -> None:
        """A connection was ``accepted``, ``closed``, or its ``handshake_failed``."""
        self._connections[event] = self._connections.get(event, 0) + 1

    def counters(self) -> list[Sample]:
        """Samples of ``requests``, ``bad_messages`` and ``connections``."""
        return [
            *(Sample("requests", key, count) for key, count in self._requests.items()),
            *(Sample("bad_messages", (reason,), count) for reason, count in self._bad_messages.items()),
            *(Sample("connections", (event,), count) for event, count in self._connections.items()),
        ]

    def histograms(self) -> list[HistogramSample]:
        """Samples of ``request_duration_seconds``."""
        return [
            HistogramSample("request_duration_seconds", (op,), tuple(counts), self._duration_sums[op])
            for op, counts in self._durations.items()
        ]
