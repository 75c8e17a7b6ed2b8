"""The Hugging Face hub on loopback: a data set of the files of a folder, as far as its file system
asks for it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

DATASET, REVISIONS = "ann/pets", ("main", "refs/convert/parquet")
"""Its data set, and the revisions of it, which are the same."""


@contextmanager
def hub_at_hand(folder: Path, token: str = "") -> Iterator[str]:
    """Serve a folder as the data set `ann/pets` for the length of the block; gives the endpoint.

    `token`: the one that every request needs, as of a private data set.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, folder, token))
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, token: str, *arguments: object) -> None:
        self.folder, self.token = folder, token
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")]
        dataset = f"datasets/{DATASET}"
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self._send(401, b"", **{"X-Error-Code": "RepoNotFound"})
        elif "/".join(parts) in (
            f"/api/{dataset}",
            *(f"/api/{dataset}/revision/{each}" for each in REVISIONS),
        ):
            self._send(200, json.dumps({"id": DATASET, "sha": "0" * 40}).encode())
        elif "/".join(parts[:6]) == f"/api/{dataset}/tree" and parts[6] in REVISIONS:
            self._tree("/".join(parts[7:]))
        elif "/".join(parts[:5]) == f"/{dataset}/resolve" and parts[5] in REVISIONS:
            self._file(self.folder / "/".join(parts[6:]))
        else:
            self._send(404, b"", **{"X-Error-Code": "RepoNotFound"})

    def _tree(self, below: str) -> None:
        recursive = "recursive=true" in self.path.lower()
        if not (self.folder / below).is_dir():
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return
        found = sorted(
            (self.folder / below).rglob("*") if recursive else (self.folder / below).iterdir()
        )
        entries = [
            {
                "type": "directory" if each.is_dir() else "file",
                "path": str(each.relative_to(self.folder)),
                "size": each.stat().st_size,
                "oid": "0" * 40,
            }
            for each in found
        ]
        self._send(200, json.dumps(entries).encode())

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return
        content = file.read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        self._send(206, content[int(first) : int(last or len(content)) + 1])

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(content)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
