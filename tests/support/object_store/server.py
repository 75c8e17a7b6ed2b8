"""An object store on loopback that reads a folder: the part of S3 that readers use, with a slow
link and faults.

    python -m support.object_store.server FOLDER LATENCY BANDWIDTH
        (seconds, bytes a second; prints its port)

moto's server (`s3.py`) also takes uploads, and gives some tens of MB/s; this one fills a link of
200 MB/s.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
CHUNK = 128 * 1024


@dataclass(frozen=True)
class Request:
    """A request for an object."""

    method: str
    key: str
    """`bucket/key`."""
    first: int
    stop: int
    """Bytes that are asked for, half open."""
    login: str
    """The name of the access key that signed it."""


@dataclass
class Link:
    """The way to the clients, which all of them share."""

    latency: float = 0.0
    """Seconds before each answer."""
    bandwidth: float | None = None
    """Bytes a second."""
    _free: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_through(self, num_bytes: int) -> None:
        """Wait until the link has taken as many bytes."""
        if self.bandwidth:
            with self._lock:
                now = time.monotonic()
                self._free = max(now - 0.02, self._free) + num_bytes / self.bandwidth
                wait = self._free - now
            if wait > 0:
                time.sleep(wait)


class ObjectServer:
    """Objects `bucket/key`, the files below a folder. `stop` and `start` let it go away and come
    back.
    """

    def __init__(self, folder: Path, latency: float = 0.0, bandwidth: float | None = None) -> None:
        self.folder, self.link, self.port = folder, Link(latency, bandwidth), 0
        self.requests: list[Request] = []
        self.bytes_sent = 0
        self.fault: Callable[[Request], str | None] = lambda request: None
        """The fault of each answer: a status (`500`), `hang`, `drop` within the body, `short` or
        `long` (a length that lies), `flip` (a byte is another), `truncate` (as if the object had
        half its bytes)."""
        self.hang = threading.Event()
        """Set at the end, so that answers that hang end."""
        self._lock, self._server, self._connections = threading.Lock(), None, set[Any]()
        self._thread: threading.Thread | None = None

    @property
    def query(self) -> str:
        """The query that sends an s3:// URI there."""
        return f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen at the same port as before."""
        server: Any = ThreadingHTTPServer(
            ("127.0.0.1", self.port), _Handler, bind_and_activate=False
        )
        server.allow_reuse_address = True
        server.daemon_threads = True
        server.request_queue_size = 64
        server.server_bind()
        server.server_activate()
        server.objects, self._server, self.port = self, server, server.server_port
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from here on, and break those that are open."""
        if self._thread is not None and self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._connections):
                with suppress(OSError):
                    connection.shutdown(2)
            self._thread.join()
            self._thread = None

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.bytes_sent += num_bytes

    def ranges(self) -> list[Request]:
        """Requests for content."""
        return [request for request in self.requests if request.method == "GET"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._objects: ObjectServer = self.server.objects  # type: ignore[attr-defined]
        self._objects._connections.add(self.connection)

    def finish(self) -> None:
        self._objects._connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *args: object) -> None:
        return

    def do_GET(self) -> None:
        link = self._objects.link
        if link.latency:
            time.sleep(link.latency)
        parts = urlsplit(self.path)
        key, query = unquote(parts.path).strip("/"), parse_qs(parts.query)
        if self.command == "GET" and ("list-type" in query or "/" not in key):
            self._list(key, query)
            return
        path = self._objects.folder / key
        size = path.stat().st_size if path.is_file() and "/" in key else -1
        first, stop = self._range(size)
        request = Request(self.command, key, first, stop, self._login())
        self._objects.requests.append(request)
        fault = self._objects.fault(request)
        if fault == "hang":
            self._objects.hang.wait(60)
            self.close_connection = True
        elif fault and fault.isdecimal():
            self._refuse(int(fault), "ExpiredToken" if fault == "400" else "InternalError")
        elif size < 0:
            self._refuse(404, "NoSuchKey")
        else:
            self._send(path, request, size // 2 if fault == "truncate" else size, fault)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _range(self, size: int) -> tuple[int, int]:
        asked = self.headers.get("Range", "")
        if not asked.startswith("bytes="):
            return 0, max(size, 0)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        return int(first), min(int(last or size - 1) + 1, max(size, 0))

    def _login(self) -> str:
        return self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]

    def _send(self, path: Path, request: Request, size: int, fault: str | None) -> None:
        first, stop = request.first, min(request.stop, size)
        if first >= stop and request.method == "GET" and size:
            self._refuse(416, "InvalidRange")
            return
        told = stop - first
        if fault == "short":
            told += -told // 3
        elif fault == "long":
            told += 1000
        if request.method == "HEAD":
            told = max(0, told)
        is_range = "Range" in self.headers
        self.send_response(206 if is_range else 200)
        self.send_header("Content-Length", str(told))
        self.send_header("ETag", f'"{md5(str(path).encode()).hexdigest()}"')
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        if is_range:
            self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{size}")
        self.end_headers()
        if request.method == "GET":
            self._send_body(path, request, stop, fault, told)

    def _send_body(
        self, path: Path, request: Request, stop: int, fault: str | None, told: int
    ) -> None:
        at = request.first
        end = {"drop": at + (stop - at) // 2, "short": at + told}.get(fault or "", stop)
        with path.open("rb") as file:
            file.seek(at)
            while at < end:
                chunk = file.read(min(CHUNK, end - at))
                if fault == "flip":
                    place, fault = random.randrange(len(chunk)), None
                    chunk = chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :]
                self._objects.link.pass_through(len(chunk))
                self.wfile.write(chunk)
                self._objects.count(len(chunk))
                at += len(chunk)
        self.wfile.flush()
        if fault in ("drop", "long", "short"):
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(2)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._send_xml(status, "" if self.command == "HEAD" else body)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        root = self._objects.folder / bucket
        found = []
        folders = set[str]()
        for file in root.rglob("*"):
            key = str(file.relative_to(root))
            if file.is_dir() or not key.startswith(prefix):
                continue
            below = key.removeprefix(prefix)
            if delimiter and delimiter in below:
                folders.add(prefix + below.split(delimiter)[0] + delimiter)
            else:
                size = file.stat().st_size
                found.append(f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>")
        common = "".join(
            f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in sorted(folders)
        )
        self._send_xml(
            200,
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(found) + len(folders)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(found)}{common}</ListBucketResult>",
        )

    def _send_xml(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def credentials() -> Iterator[None]:
    """Credentials stand in the environment for the length of the block, as on a cluster."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """A running server of the folder's buckets. Credentials stand in the environment meanwhile, as
    on a cluster.
    """
    server = ObjectServer(folder)
    with credentials():
        server.start()
        try:
            yield server
        finally:
            server.hang.set()
            server.stop()


if __name__ == "__main__":
    served = ObjectServer(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]) or None)
    served.start()
    print(served.port, flush=True)
    for _line in sys.stdin:  # a line asks for the counts; the end of the input ends the server
        print(len(served.ranges()), served.bytes_sent, len(served.requests), flush=True)
    served.stop()
