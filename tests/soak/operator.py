"""Whoever else comes to a gateway: scrapes, clients of the admin API, watchers of its page, an operator.

Owns: their visits, in an order that follows from the seed, and what they change and change back.
"""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import httpx

from tests.support import scrape

READS = ("state", "overview", "engines", "transfers", "cache", "switches", "drain")
MAX_WATCHERS = 4
_WATCHED_SECONDS = 10.0


class Watcher:
    """One that watches ``/v1/events`` for a while, on a thread of its own."""

    def __init__(self, url: str) -> None:
        self.num_points = 0  #: in the history that it was given
        self.num_frames = 0
        self._url = url
        self._has_seen_enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether it watches still."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Go after the next line."""
        self._has_seen_enough.set()

    def _watch(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            with httpx.stream("GET", f"{self._url}/v1/events", timeout=_WATCHED_SECONDS, trust_env=False) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: ") and '"points"' in line:
                        self.num_points = len(json.loads(line.removeprefix("data: "))["points"])
                    self.num_frames += not line
                    if self._has_seen_enough.is_set():
                        return


class Visitors:
    """All of them. ``visit`` lets one come; ``undo`` is called often, ``leave`` at the end."""

    def __init__(self, url: str, engines: Sequence[str], seed: int) -> None:
        self.visits: Counter[str] = Counter()
        self.num_points = 0
        self._url = url
        self._engines = engines
        self._dice = random.Random(seed)
        self._watchers: list[Watcher] = []
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "read": (30, lambda: self._request("GET", self._dice.choice(READS))),
            "scrape": (20, self._scrape),
            "watch": (10, self._watch),
            "drain": (3, self._drain),
            "drain an engine": (3, self._drain_engine),
            "switch": (3, self._switch),
            "clear": (1, lambda: self._request("POST", "cache/clear", {"all": True, "reason": "soak"})),
        }

    def visit(self) -> None:
        """One comes."""
        kind = self._dice.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])[0]
        self._kinds[kind][1]()
        self.visits[kind] += 1

    def undo(self, *, everything: bool = False) -> None:
        """Take back what was changed for a while, when its time has come."""
        now = time.monotonic()
        for one in [one for one in self._undo if everything or one[0] <= now]:
            self._undo.remove(one)
            one[1]()
        self._watchers = [watcher for watcher in self._watchers if watcher.is_there]
        self.num_points = max((watcher.num_points for watcher in self._watchers), default=self.num_points)

    def leave(self) -> None:
        """Everything is as it was, and nobody watches."""
        self.undo(everything=True)
        for watcher in self._watchers:
            watcher.leave()

    def _request(self, method: str, path: str, body: object = None) -> None:
        """As a client that comes for this alone: a connection of its own. An engine may be gone, a drain be over."""
        reply = httpx.request(method, f"{self._url}/v1/{path}", json=body, timeout=10, trust_env=False)
        assert reply.status_code < 400 or reply.status_code in (404, 409), (
            f"{method} {path}: {reply.status_code} {reply.text}"
        )

    def _scrape(self) -> None:
        assert scrape.value(scrape.of_gateway(self._url), "kvgate_scrape_success") == 1

    def _watch(self) -> None:
        if len(self._watchers) < MAX_WATCHERS:
            watcher = Watcher(self._url)
            self._watchers.append(watcher)
            self._for_a_while(self._dice.uniform(0.5, _WATCHED_SECONDS), watcher.leave)

    def _drain(self) -> None:
        self._request("POST", "drain", {"deadline_seconds": self._dice.choice((0, 0.3, 5)), "reason": "soak"})
        self._for_a_while(0.5, lambda: self._request("POST", "resume"))

    def _drain_engine(self) -> None:
        path = f"engines/{self._dice.choice(self._engines)}"
        self._request("POST", f"{path}/drain", {"deadline_seconds": self._dice.choice((0, 0.3, 5))})
        self._for_a_while(1.0, lambda: self._request("POST", f"{path}/resume"))

    def _switch(self) -> None:
        path = f"switches/engine/{self._dice.choice(self._engines)}"
        self._request("PUT", path, {"mode": self._dice.choice(("off", "no_store", "no_load")), "reason": "soak"})
        self._for_a_while(1.0, lambda: self._request("DELETE", path))

    def _for_a_while(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))
