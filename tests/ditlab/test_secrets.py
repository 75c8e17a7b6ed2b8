"""Secrets that `hide` removes from a text, and words that it leaves."""

import base64
import json

import pytest

from ditlab.secrets import hide
from support.python_process import run_python

SECRET = "wJalr/XUtn+FEMI K7"
SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "RAY_AUTH_TOKEN",
    "PGPASSWORD",
    "AZURE_STORAGE_KEY_SECRET",
    "WANDB_API_KEY",
    "MY_SECRET_THING",
    "DB_PASS",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "aws_secret_access_key",
    "AZURE_STORAGE_CONNECTION_STRING",
)


@pytest.fixture(autouse=True)
def nothing_secret(monkeypatch):
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", SECRETS)
def test_the_value_of_a_variable_with_a_telling_name_is_hidden(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert hide(f"no access with {SECRET}, sorry") == "no access with ***, sorry"


@pytest.mark.parametrize(
    "name",
    [
        "RAY_AUTH_TOKEN_PATH",
        "AWS_ACCESS_KEY_ID",
        "TOKENIZERS_PARALLELISM",
        "HOME_FOLDER",
        "PGPASSFILE",
        "KEYBOARD",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "PASSENGERS",
        "SSL_CERT_FILE",
    ],
)
def test_other_variables_are_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert hide(f"as {SECRET} says") == f"as {SECRET} says"


def test_short_values_are_left_alone(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "step")
    assert hide("step 3 of 4") == "step 3 of 4"


def test_a_value_that_holds_another_is_hidden_whole(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "abcdef")
    monkeypatch.setenv("B_TOKEN", "abcdef-ghijkl")
    assert hide("abcdef-ghijkl and abcdef") == "*** and ***"


@pytest.mark.parametrize(
    "secret", [SECRET, 'with "quotes" and \\', "tab\tand line\nbreak", "naïve päss"]
)
def test_escaped_spellings_are_hidden_too(monkeypatch, secret):
    from urllib.parse import quote, quote_plus

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", secret)
    for spelling in (
        repr(secret),
        json.dumps({"a": secret}),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret, ensure_ascii=False),
    ):
        hidden = hide(f"<{spelling}>")
        assert "***" in hidden and len(hidden) < len(spelling) + 2, spelling


@pytest.mark.parametrize(
    "text, hidden",
    [
        (
            "postgresql://ann:s3cr3t@db:5432/runs is down",
            "postgresql://ann:***@db:5432/runs is down",
        ),
        ("https://:only@host/x", "https://:***@host/x"),
        ("s3://AKIA:se/cr+et@bucket/x", "s3://AKIA:***@bucket/x"),
        ("see http://127.0.0.1:5000/a@b", "see http://127.0.0.1:5000/a@b"),
        ("http://localhost:5000", "http://localhost:5000"),
        ("s3://b/p?region=eu&secret_key=abc&x=1", "s3://b/p?region=eu&secret_key=***&x=1"),
        (
            "https://b.s3/x?X-Amz-Signature=0123&X-Amz-Date=1",
            "https://b.s3/x?X-Amz-Signature=***&X-Amz-Date=1",
        ),
        ("{'Authorization': 'Basic YW5uOnB3'}", "{'Authorization': 'Basic ***'}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("basic training, token 3 of 7", "basic training, token 3 of 7"),
    ],
)
def test_addresses_and_headers(text, hidden):
    assert hide(text) == hidden
    assert hide(hidden) == hidden


def test_the_words_of_basic_authentication_are_hidden(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    encoded = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert hide(f"sent {encoded} in vain") == "sent *** in vain"


def test_a_traceback_that_nobody_catches_is_hidden():
    code = (
        "import threading\nfrom ditlab.secrets import "
        "hide_tracebacks\nhide_tracebacks()\nimport os\ndef fail(): raise "
        "ValueError(os.environ['HF_TOKEN'])\nthread = "
        "threading.Thread(target=fail)\nthread.start()\nthread.join()\nfail()\n"
    )
    secret = "hf_0123456789"
    said = run_python("-c", code, code=1, env={"HF_TOKEN": secret, "PATH": ""}).stderr
    assert said.count("ValueError: ***") == said.count("Traceback") == 2 and secret not in said


def test_hiding_needs_the_standard_library_alone():
    code = "import sys, ditlab.secrets; print(not {'torch', 'ray', 'pydantic', 'mlflow'} & set(sys.modules))"
    assert run_python("-c", code).stdout == "True\n"
