"""`ditlab doctor` on this machine."""

from ditlab.cluster import session
from ditlab.errors import RunFailed
from ditlab_addons.doctor import machine
from ditlab_models.families import families


def test_doctor_lists_its_findings(ditlab, home, monkeypatch):
    monkeypatch.setattr(machine, "check_ray", lambda: iter(()))  # 8 s: test_starts.py
    said = ditlab("doctor", "--json")
    assert said.code == (1 if said.json["missing"] else 0)
    assert set(said.json) == {"missing", "findings"}
    found = {finding["what"]: finding for finding in said.json["findings"]}
    assert {"Python", "torch", "deepspeed", "DITLAB_HOME", "model families", "MLflow"} <= set(found)
    assert ", ".join(families()) in found["model families"]["found"]
    assert all(finding["remedy"] for finding in found.values() if finding["verdict"] != "ok")
    assert said.out.count("\n") == 1 and "Python" in said.err
    assert not home.exists()


def test_the_doctor_shows_what_a_start_of_ray_fails_on(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cause = "validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes"

    def fail(*_):
        raise RunFailed("Ray cannot be started; see `ditlab doctor`") from OSError(cause)

    monkeypatch.setattr(session, "ray_session", fail)
    (finding,) = machine.check_ray()
    assert (finding.verdict, finding.found) == ("missing", cause)


def test_the_doctor_looks_at_the_cluster_that_a_training_would_use(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (finding,) = machine.check_ray()
    assert finding.verdict == "missing"
    assert finding.found.startswith("RAY_ADDRESS=127.0.0.1:9: no Ray cluster")
