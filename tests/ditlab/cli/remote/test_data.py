"""A run whose data lie in an object store: S3, a real server on loopback that can go down."""

import shutil

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


@pytest.fixture
def place(server, tmp_path):
    return f"s3://bucket/{tmp_path.name}/digits?{server.query}"


def arrow(place):
    return ["--set", f"data={{kind: arrow, path: '{place}'}}"]


@pytest.mark.slow
def test_imported_uploaded_and_trained_on(ditlab, spec, home, place, cache):
    ditlab("data", "import", "digits").ok()
    upload = ("data", "upload", "digits", place, "--json")
    sent = ditlab(*upload).ok()
    assert (sent.json["outcome"], sent.json["rows"]) == ("uploaded", 1797)
    again = ditlab(*upload)
    assert again.json["outcome"] == "unchanged" and "is there already, unchanged" in again.err
    near = ditlab("train", spec, "--local", "--json", *arrow(str(home / "stores" / "digits")))
    shutil.rmtree(home / "stores")

    far = ditlab("train", spec, "--local", "--json", *arrow(place)).ok()
    run = far.json["run_id"]
    assert far.json["step"] == 4
    assert far.json["metrics"]["train/loss"] == near.json["metrics"]["train/loss"]
    assert far.err.count(f"iB copied to {cache}/digits-") == 1 and f"data.path={place}: " in far.err
    (copied,) = cache.glob("[!.]*")
    assert copied.name == f"digits-{sent.json['fingerprint'][:12]}"
    written = (home / "train" / run / "spec.yaml").read_text()
    assert place in written and not (home / "stores").exists()

    assert "copied" not in ditlab("sample", run, "--num", "2").ok().err
    ditlab("evaluate", run).ok()
    shutil.rmtree(cache)
    words = ("--resume", run, *arrow(place), "--set", "training.steps=6")
    resumed = ditlab("train", spec, "--local", "--json", *words).ok()
    assert resumed.json["step"] == 6 and resumed.err.count(" copied to ") == 1


def test_a_store_is_inspected_by_its_manifest_alone(ditlab, place, cache, server):
    ditlab("data", "import", "digits").ok()
    sent = ditlab("data", "upload", "digits", place, "--json")
    server.requests.clear()
    seen = ditlab("data", "inspect", place, "--json").ok()
    assert seen.json["fingerprint"] == sent.json["fingerprint"]
    assert (seen.json["path"], seen.json["rows"], seen.json["picture"]) == (place, 1797, None)
    assert not [request for request in server.requests if ".arrow" in request]
    assert not cache.exists()
    assert ditlab("data", "inspect", place).out.count("178") == 1  # images of a nought
    ditlab("data", "inspect", place, "--num", "3").refused("--num")
    ditlab("data", "upload", "nothing", place).refused("nothing holds no store")
