"""An S3 server on loopback."""

import logging

import pytest

from support.object_store.s3 import s3_at_hand


@pytest.fixture(scope="module")
def server():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_at_hand("bucket") as running:
        yield running
