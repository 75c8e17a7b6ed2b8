"""An S3 server on loopback, and a client that gives up on a silent place after one attempt."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import fs

from support.object_store.s3 import S3Server, s3_at_hand

SILENT = "127.0.0.1:9"
"""An address where nothing listens."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_at_hand("bucket") as running:
        yield running


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect to `SILENT` once: pyarrow's client goes on trying for six seconds, which no URI
    changes.
    """
    open_any = fs.FileSystem.from_uri

    class OneAttempt:
        @staticmethod
        def from_uri(uri: str) -> tuple[Any, str]:
            opened, path = open_any(uri)
            if SILENT in uri:
                retry = fs.AwsStandardS3RetryStrategy(max_attempts=1)
                opened = fs.S3FileSystem(
                    endpoint_override=SILENT,
                    scheme="http",
                    region="us-east-1",
                    retry_strategy=retry,
                )
            return opened, path

    monkeypatch.setattr(fs, "FileSystem", OneAttempt)
