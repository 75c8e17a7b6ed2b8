"""An S3 server on loopback, for as long as a test session lasts; it can go down and come back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.object_store.server import credentials


class S3Server:
    """moto's server in a thread of this process. What it holds outlives its absences."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[str] = []
        """`GET /bucket/key` and so on, since the start."""
        self.before: Callable[[str], object] = lambda request: None
        """Called with each request before it is served, in a thread of its own."""
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def query(self) -> str:
        """The query that sends an s3:// URI there."""
        return f"scheme=http&region=us-east-1&endpoint_override={self.endpoint}"

    def start(self) -> None:
        """At the same port as before."""
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        backend = DomainDispatcherApplication(create_backend_app)

        def served(environ: dict[str, Any], start_response: Any) -> Any:
            self.requests.append(request := f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            self.before(request)
            return backend(environ, start_response)

        self._server = make_server("127.0.0.1", self.port, served, threaded=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Connections are refused from here on."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._thread = None


@contextmanager
def s3_at_hand(bucket: str) -> Iterator[S3Server]:
    """A running server that holds a bucket. Credentials stand in the environment meanwhile, as on a
    cluster.
    """
    import boto3

    server = S3Server()
    with credentials():
        server.start()
        try:
            client = boto3.client("s3", endpoint_url=f"http://{server.endpoint}")
            client.create_bucket(Bucket=bucket)
            yield server
        finally:
            server.stop()


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """A server with a bucket; gives the query that sends an s3:// URI there."""
    with s3_at_hand(bucket) as server:
        yield server.query
