"""Secrets in a place's name are refused without being repeated; what only looks like one is not."""

import pytest

from ditlab.spec.data import ArrowData
from ditlab.spec.engine import Checkpoint
from ditlab.spec.uris import refuse_secret, refuse_storage

SECRETS = [
    "s3://AKIA:hunter2@bucket/x",
    "s3://AKIA:hun/hunter2+x@bucket/x",  # secret keys of AWS hold slashes
    "s3://AKIA:hunter2[@bucket/x",
    "s3://AKIA: hunter2@bucket",
    "http://:hunter2@host",
    "simplecache::s3://me:hunter2@bucket/x",
    "abfs://c/p?sig=hunter2",
    "s3://b/p?region=x&secret_key=hunter2",
    "s3://b/p?secret%5Fkey=hunter2",
    "gs://b/p?access_token=hunter2",
    "https://host/p#access_token=hunter2",
]
HARMLESS = [
    "s3://bucket/prefix?region=eu-west-1&endpoint_override=127.0.0.1:9000&scheme=http",
    "http://host:5000/a@b",
    "hdfs://me@host:8020/folder",
    "abfs://container@account.dfs.core.windows.net/prefix",
    "s3://bucket/a:b@c",
    "file:///a b",
    "runs/store",
    "a: b@c",
    "",
]


@pytest.mark.parametrize("value", SECRETS)
def test_a_secret_is_refused_and_not_repeated(value):
    for refuse in (refuse_secret, refuse_storage):
        with pytest.raises(
            ValueError, match=r"data\.path=\w*://\.\.\. holds a password or key"
        ) as caught:
            refuse("data.path", value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", HARMLESS)
def test_what_holds_no_secret_passes(value):
    refuse_secret("data.path", value)


@pytest.mark.parametrize(
    "value", ["s3://[b/p", "s3:/bucket", "s3://b /p", "a\0b", "s3://me:hunter2@bucket/x"]
)
def test_what_is_no_place_is_refused_for_data_and_checkpoints(value):
    with pytest.raises(ValueError, match=r"data\.path="):
        ArrowData(path=value)
    with pytest.raises(ValueError, match=r"checkpoint\.storage="):
        Checkpoint(storage=value)
