"""An S3 server on loopback."""

import logging
from collections.abc import Iterator

import pytest

from support.object_store.s3 import S3Server, s3_at_hand


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_at_hand("bucket") as running:
        yield running
