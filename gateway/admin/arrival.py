"""A bound on how long a connection may hold a place without a whole request.

Owns: that bound. Must not know: routes, what a request asks. Runs on the event loop.

Uvicorn ends a connection that is silent *after* an answer. One that never asks, or stops in the middle, it keeps for
ever, and with it a file of this process: so many of them, and a probe finds no room, which looks like death.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: For a request, its body included. It is looked at so often: what is late is dropped before twice as long.
REQUEST_SECONDS = 5.0


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 that drops whoever does not ask; an answer may take as long as it likes."""

    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to look."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle)

    def _look(self, before: RequestResponseCycle | None) -> None:
        """Drop it if it has asked nothing since the look before."""
        is_answering = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if self.cycle is before and not is_answering:
            self.transport.close()
        else:
            self._look_later()
