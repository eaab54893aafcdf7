"""A gateway by its admin API: the way for commands that run elsewhere than the gateway.

Owns: calls, token and errors of that way. Must not know: how answers are shown. Runs on the main thread.
"""

from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.admin import views
from gateway.admin.overview import Overview
from gateway.cli.control import ControlError, Refused, Unreachable, requested_by
from gateway.wire.codes import SwitchMode, SwitchScope

Document = TypeVar("Document", bound=BaseModel)

UNIX = "unix:"

_MAYBE_DRAIN: TypeAdapter[views.Drain | None] = TypeAdapter(views.Drain | None)


class HttpControl:
    """A gateway, or an adapter, by the URL of its admin API: ``http://HOST:PORT``, or ``unix:PATH``."""

    def __init__(self, url: str, token: str, timeout_seconds: float) -> None:
        self.run_dir: Path | None = None  # the gateway may be on another node
        headers = {"X-Requested-By": requested_by()} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout_seconds = timeout_seconds
        path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        # No proxy: the gateway is on this node or in this cluster, and a proxy would be given the token.
        self._client = httpx.Client(
            base_url=url if path is None else "http://localhost",
            transport=None if path is None else httpx.HTTPTransport(uds=path),
            headers=headers,
            trust_env=False,
        )
        self._url = url

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def is_gone(self) -> bool:
        """Whether nobody listens any more."""
        try:
            self._client.get("/livez", timeout=self._timeout_seconds)
        except httpx.ConnectError:
            return True
        except httpx.TransportError:
            return False
        return False

    def state(self) -> views.GatewayState:
        """The gateway now."""
        return _read(views.GatewayState, self._call("GET", "/v1/state"))

    def overview(self) -> Overview:
        """The gateway now, with a verdict, engines worst first, and operations."""
        return _read(Overview, self._call("GET", "/v1/overview"))

    def last_drain(self, wait_seconds: float) -> views.Drain | None:
        """The last drain; waits while it is under way, so long at most."""
        answer = self._call("GET", "/v1/drain", query={"wait_seconds": str(wait_seconds)}, waits=wait_seconds)
        return _MAYBE_DRAIN.validate_json(answer.content)

    def drain(self, body: views.DrainBody) -> views.Drain:
        """Begin or join a drain."""
        return _read(views.Drain, self._call("POST", "/v1/drain", body))

    def resume(self, reason: str) -> views.GatewayState:
        """Take new work again."""
        return _read(views.GatewayState, self._call("POST", "/v1/resume", views.ReasonBody(reason=reason)))

    def engines(self) -> views.Engines:
        """All engines."""
        return _read(views.Engines, self._call("GET", "/v1/engines"))

    def engine(self, name: str) -> views.Engine:
        """One engine."""
        return _read(views.Engine, self._call("GET", f"/v1/engines/{name}"))

    def drain_engine(self, name: str, body: views.EngineDrainBody) -> views.Engine:
        """Begin or join the drain of one engine."""
        return _read(views.Engine, self._call("POST", f"/v1/engines/{name}/drain", body))

    def resume_engine(self, name: str, reason: str) -> views.Engine:
        """Take new work from one engine again."""
        body = views.ReasonBody(reason=reason)
        return _read(views.Engine, self._call("POST", f"/v1/engines/{name}/resume", body))

    def transfers(self, engine: str | None, request: str | None, state: views.TransferState | None) -> views.Transfers:
        """Operations that fit the filters."""
        given = {"engine": engine, "request": request, "state": state}
        query = {name: str(value) for name, value in given.items() if value is not None}
        return _read(views.Transfers, self._call("GET", "/v1/transfers", query=query))

    def clear(self, body: views.ClearBody) -> views.ClearResult:
        """Forget chunks."""
        return _read(views.ClearResult, self._call("POST", "/v1/cache/clear", body))

    def switch(self, scope: SwitchScope, name: str, mode: SwitchMode | None, reason: str) -> views.Switches:
        """Set a switch for good; None takes it away."""
        path = f"/v1/switches/{scope}/{quote(name, safe='')}"
        if mode is None:
            return _read(views.Switches, self._call("DELETE", path))
        return _read(views.Switches, self._call("PUT", path, views.SwitchBody(mode=mode, reason=reason)))

    def _call(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        query: dict[str, str] | None = None,
        waits: float = 0.0,
    ) -> httpx.Response:
        try:
            answer = self._client.request(
                method,
                path,
                params=query,
                json=None if body is None else body.model_dump(exclude_none=True),
                timeout=httpx.Timeout(self._timeout_seconds, read=self._timeout_seconds + waits),
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"cannot reach the admin API at {self._url}: {reason}") from None
        if answer.is_success:
            return answer
        raise _as_error(answer)


def _as_error(answer: httpx.Response) -> ControlError:
    """A problem document in the words of the command line; anything else is told by its status."""
    try:
        problem = answer.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return Refused(f"{answer.url} answered {answer.status_code}, which is no answer of a gateway's admin API")
    if code == "unreachable":
        return Unreachable(detail)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return Refused("the admin token is missing or wrong: give --token-file or KVGATE_ADMIN_TOKEN")
    if answer.status_code == httpx.codes.NOT_FOUND and detail.endswith(f"{answer.url.path} does not exist"):
        place = answer.url.copy_with(path="/", query=None)
        return Refused(f"{detail}; is {place} a probe listener, or an engine's admin server?")
    return Refused(detail)


def _read(document: type[Document], answer: httpx.Response) -> Document:
    try:
        return document.model_validate_json(answer.content)
    except ValidationError as error:
        raise Refused(f"{answer.url} gave a document of another kind: {error.errors()[0]['msg']}") from None
