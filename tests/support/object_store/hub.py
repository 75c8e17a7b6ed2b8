"""The Hugging Face hub on loopback: a data set of the files of a folder, as far as its file system
asks for it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

DATASET = "ann/pets"
REVISION = "(main|refs/convert/parquet)"
"""Revisions of its data set, which are the same."""
PLACE = re.compile(
    rf"/(api/)?datasets/{DATASET}(/revision/{REVISION}|/(?P<what>tree|resolve)/{REVISION}(/(?P<below>.*))?)?"
)


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
        found = PLACE.fullmatch(unquote(urlsplit(self.path).path))
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self._refuse(401, "RepoNotFound")
        elif found is None:
            self._refuse(404, "RepoNotFound")
        elif found["what"] == "tree":
            self._tree(self.folder / (found["below"] or ""))
        elif found["what"] == "resolve":
            self._file(self.folder / found["below"])
        else:
            self._send(200, json.dumps({"id": DATASET, "sha": "0" * 40}).encode())

    def _tree(self, folder: Path) -> None:
        if not folder.is_dir():
            self._refuse(404, "EntryNotFound")
            return
        is_recursive = "recursive=true" in self.path.lower()
        entries = [
            {
                "type": "directory" if each.is_dir() else "file",
                "path": str(each.relative_to(self.folder)),
                "size": each.stat().st_size,
                "oid": "0" * 40,
            }
            for each in sorted(folder.rglob("*") if is_recursive else folder.iterdir())
        ]
        self._send(200, json.dumps(entries).encode())

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        content = file.read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        self._send(206, content[int(first) : int(last or len(content)) + 1])

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", code)

    def _send(self, status: int, content: bytes, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(content)
