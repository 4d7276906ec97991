"""Runs the application until a signal comes: binds the address, says so, and finishes what is in flight."""

import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError
from domainwise.serving.limits import Limits

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

log = logging.getLogger(__name__)
BACKLOG = 2048


def run(
    app: "FastAPI", host: str = "127.0.0.1", port: int = 8000, *, started: Callable[[str], None] = lambda _: None
) -> None:
    """Answers requests until SIGINT, SIGTERM or SIGHUP, which wait for requests in flight; a second one does not.

    `started` is called with the address as soon as requests are accepted. The access log goes to standard output, one
    JSON object per request.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as after nohup
                    signal.signal(signal.SIGHUP, self.handle_exit)
                started(address(listener))

    listener = bind(host, port)
    print_access_log()
    for name in ("uvicorn", "python_multipart"):  # which warn of whatever clients send
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        Server(configuration(app)).run(sockets=[listener])
    except KeyboardInterrupt:  # raised again by uvicorn when all is done
        return
    finally:
        listener.close()


def configuration(app: "FastAPI") -> "uvicorn.Config":
    """How uvicorn runs the application: within its limits, and quietly."""
    import uvicorn

    limits: Limits = app.state.service.limits
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(limits.read_seconds),
        timeout_graceful_shutdown=int(limits.shutdown_seconds),
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens, so that an address that cannot be had is an error before anything starts."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, where = addresses[0]
        listener = socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except socket.gaierror:
        raise UserError(f"no address of this machine is called {host!r}", argument="host") from None
    except (OSError, OverflowError, UnicodeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise UserError(f"cannot listen at {host}, port {port} ({reason}): give another", argument="port") from None
    listener.set_inheritable(False)
    return listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it; of a name, whether it is localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _ToStandardOutput(logging.StreamHandler[Any]):
    """A reader that has gone away ends the log, not the server."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002 (the name and arguments of logging)
        self.setLevel(logging.CRITICAL + 1)


def print_access_log() -> None:
    access = logging.getLogger("domainwise.serving.access")
    for handler in list(access.handlers):
        access.removeHandler(handler)
    access.addHandler(_ToStandardOutput(sys.stdout))
    access.setLevel(logging.INFO)
    access.propagate = False
