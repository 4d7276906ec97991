"""An HTTP server on the loopback interface for downloads: it cuts, delays and refuses replies on demand."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATA = os.urandom(300_000)


class Server(ThreadingHTTPServer):
    """Serves `files` by their names, and `data` as anything else; the tests change how."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.cut_after: int | None = None  # bytes of a reply before the connection drops
        self.cuts = 0  # how many replies are cut
        self.knows_ranges = True
        self.tells_length = True
        self.status = 200
        self.data = DATA
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"{self.root}/digits.mat"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        start = int(asked.split("=")[1].rstrip("-")) if asked and server.knows_ranges else 0
        if server.status != 200:
            self.send_error(server.status)
            return
        data = server.files.get(self.path.removeprefix("/"), server.data)
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if server.tells_length:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        if server.cut_after is not None and server.cuts:
            server.cuts -= 1
            body = body[: server.cut_after]
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def running(server: Server) -> Iterator[Server]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
