"""Faults of a server on command: an HTTP proxy on loopback that delays, refuses, cuts or
swallows.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["none", "500", "drop", "swallow", "hang"]


class Proxy:
    """A proxy, used as a context manager. `drop` cuts the connection; `swallow` does so after the
    server's answer.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        """`port`: where to listen on loopback; 0 for any free port."""
        self.target = urlsplit(target).netloc
        self.delay = 0.0
        """Seconds before every request is passed on."""
        self.fault: Fault = "none"
        self.only = ""
        """Text in the method and path of the requests that meet the fault."""
        self.num_faulty = 0
        """Number of requests that met a fault."""
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", port), type("Bound", (_Handler,), {"proxy": self})
        )
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy

    def _handle(self) -> None:
        proxy, fault = self.proxy, self.proxy.fault
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.close_connection = True
        if proxy.only not in f"{self.command} {self.path}":
            fault = "none"
        proxy.num_faulty += fault != "none"
        if fault == "hang":
            proxy.released.wait()
        if fault in ("hang", "drop"):
            return
        if fault == "500":
            self.send_error(500)
            return
        proxy.released.wait(proxy.delay)
        try:
            connection = http.client.HTTPConnection(proxy.target, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return
        if fault == "swallow":
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

    def log_message(self, *_: object) -> None: ...
