"""Around every request: its number, its line in the access log, its measurements, and an answer if the code fails."""

import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from domainwise.core.printing import printable
from domainwise.serving.limits import Refused
from domainwise.serving.metrics import ServerMetrics

log = logging.getLogger(__name__)
access = logging.getLogger("domainwise.serving.access")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PATHS = ("/", "/predict", "/heatmap", "/health", "/metrics", "/openapi.json")
WATCHED = ("/health", "/metrics")
"""Asked for every few seconds: in the log only if they fail."""
SLOW = 408
"""The status of a body that did not arrive: the rest is not waited for."""
LONGEST = 200
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class Observed:
    """ASGI middleware. The access log has no content of images, no options, and nothing that clients could forge."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        metrics: ServerMetrics,
        drain: Callable[[Any], Any],
    ) -> None:
        self.app, self.metrics, self.drain = app, metrics, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        from starlette.requests import Request

        started = time.perf_counter()
        number = secrets.token_hex(8)
        seen = {"status": 0, "bytes": 0, "more": True}
        expects = any(name == b"expect" for name, _ in scope["headers"])  # the client sends nothing unless asked to

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            seen["bytes"] += len(message.get("body", b""))
            seen["more"] = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def answered(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                refused = message["status"] >= 400 and message["status"] != SLOW
                if refused and seen["more"] and not expects:
                    await self.drain(Request(scope, counted))
                seen["status"] = message["status"]
                message["headers"] = [*message["headers"], *HEADERS, (b"x-request-id", number.encode())]
            await send(message)

        try:
            await self.app(scope, counted, answered)
        except Exception as error:
            log.error("request %s failed: %s: %s", number, type(error).__name__, printable(str(error)))
            log.debug("traceback", exc_info=True)
            scope["error"] = "internal"
            if not seen["status"]:
                await self._fail(answered, number)
        finally:
            self._note(scope, number, seen, time.perf_counter() - started)

    async def _fail(self, send: Send, number: str) -> None:
        content = Refused(500, "internal", f"the server failed; its log has the reason under {number}").content
        body = json.dumps(content).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _note(self, scope: Scope, number: str, seen: dict[str, Any], seconds: float) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.metrics.requests.add(path, str(seen["status"]))
        if path in ("/predict", "/heatmap"):
            self.metrics.seconds.observe(seconds, path)
        if error := scope.get("error"):
            self.metrics.errors.add(error)
        if path in WATCHED and seen["status"] == 200:
            return
        client = scope.get("client")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": number,
            "client": client[0] if client else None,
            "method": scope["method"][:LONGEST],
            "path": scope["path"][:LONGEST],
            "status": seen["status"],
            "ms": round(1000 * seconds, 1),
            "bytes": seen["bytes"],
        }
        line |= {name: scope[name] for name in ("images", "error") if name in scope}
        access.info(json.dumps(line))
