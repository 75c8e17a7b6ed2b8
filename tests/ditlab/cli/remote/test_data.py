"""A run whose data lie in an object store: S3, a real server on loopback that can go down."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DITLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


@pytest.fixture
def place(server, tmp_path) -> str:
    return f"s3://bucket/{tmp_path.name}/digits?{server.query}"


def arrow(place: str) -> list[str]:
    return ["--set", f"data={{kind: arrow, path: '{place}'}}"]


@pytest.mark.slow
def test_imported_uploaded_and_trained_on(ditlab, spec, home, place, cache):
    assert ditlab("data", "import", "digits").code == 0
    sent = ditlab("data", "upload", "digits", place, "--json").ok()
    assert (sent.json["outcome"], sent.json["rows"]) == ("uploaded", 1797)
    assert (again := ditlab("data", "upload", "digits", place, "--json")).json[
        "outcome"
    ] == "unchanged", again.err
    assert "is there already, unchanged" in again.err
    near = ditlab("train", spec, "--local", "--json", *arrow(str(home / "stores" / "digits")))
    shutil.rmtree(home / "stores")

    far = ditlab("train", spec, "--local", "--json", *arrow(place)).ok()
    assert (
        far.json["step"] == 4
        and far.json["metrics"]["train/loss"] == near.json["metrics"]["train/loss"]
    )
    assert far.err.count(f"iB copied to {cache}/digits-") == 1 and f"data.path={place}: " in far.err
    assert {path.name for path in cache.iterdir() if path.name[0] != "."} == {
        f"digits-{sent.json['fingerprint'][:12]}"
    }
    written = (home / "train" / far.json["run_id"] / "spec.yaml").read_text()
    assert place in written and not (home / "stores").exists()

    drawn = ditlab("sample", far.json["run_id"], "--num", "2", "--json").ok()
    assert "copied" not in drawn.err
    assert ditlab("evaluate", far.json["run_id"]).code == 0
    shutil.rmtree(cache)
    words = ("--resume", far.json["run_id"], *arrow(place), "--set", "training.steps=6")
    resumed = ditlab("train", spec, "--local", "--json", *words).ok()
    assert resumed.json["step"] == 6 and resumed.err.count(" copied to ") == 1


def test_a_store_is_inspected_by_its_manifest_alone(ditlab, place, cache, server):
    assert ditlab("data", "import", "digits").code == 0
    sent = ditlab("data", "upload", "digits", place, "--json")
    server.requests.clear()
    seen = ditlab("data", "inspect", place, "--json").ok()
    assert seen.json["fingerprint"] == sent.json["fingerprint"]
    assert (seen.json["path"], seen.json["rows"], seen.json["picture"]) == (place, 1797, None)
    assert (
        not [request for request in server.requests if ".arrow" in request] and not cache.exists()
    )
    assert ditlab("data", "inspect", place).out.count("178") == 1  # images of a nought
    ditlab("data", "inspect", place, "--num", "3").refused("--num")
    ditlab("data", "upload", "nothing", place).refused("nothing holds no store")
