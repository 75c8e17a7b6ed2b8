"""A run's spec is marked with its hash: an edit is said, and counts."""

from pathlib import Path

import pytest

from ditlab.home import RunFolder
from ditlab.spec import files
from ditlab.spec.files import encode_recorded, load_experiment, load_recorded_experiment
from ditlab.spec.sweep import load_sweep
from ditlab.storage.files import is_edited
from ditlab.sweeps.folder import SweepFolder
from support.damage import refused
from support.specs import refusal


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """A spec as DiTLab writes it into a run's folder."""
    files._warn_once.cache_clear()
    file = tmp_path / "spec.yaml"
    file.write_bytes(
        encode_recorded(load_experiment(Path("experiments/digits/dit.yaml")).to_dict())
    )
    return file


def load(spec, caplog):
    caplog.clear()
    return load_recorded_experiment(spec), caplog.text


def test_what_was_written_is_read_without_a_word(spec, caplog):
    experiment, said = load(spec, caplog)
    assert experiment == load_experiment(Path("experiments/digits/dit.yaml")) and said == ""


def test_an_edit_counts_and_is_said_once(spec, caplog):
    spec.write_text(spec.read_text().replace("seed: 0", "seed: 7"))
    experiment, said = load(spec, caplog)
    assert experiment.seed == 7 and f"{spec} was changed since DiTLab wrote it" in said
    assert load(spec, caplog)[1] == ""


def test_a_spec_without_a_hash_is_of_the_former_version(spec, caplog):
    spec.write_text("".join(spec.read_text().splitlines(keepends=True)[:-1]))
    assert load(spec, caplog)[1] == ""


def test_every_changed_bit_above_the_hash_is_noticed(spec):
    whole = spec.read_bytes()
    for bit in range(8 * whole.rindex(b"# SHA-256")):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        assert is_edited(bytes(content))


def test_fields_of_a_newer_version_are_refused(spec):
    written = load_experiment(spec).to_dict()
    for section, change in (
        ("training", {"looks_ahead": 3}),
        ("schedule", {"kind": "spiral"}),
        ("engine", {"zero": {"stage": 4}}),
        ("model", {"family": "dit9"}),
    ):
        spec.write_bytes(encode_recorded({**written, section: {**written[section], **change}}))
        said = refusal(load_recorded_experiment, spec)
        assert said.startswith(
            f"{spec}: was written by a DiTLab, or with packages, newer than those here ("
        ), said
        assert next(iter(change)) in said and said.endswith("); open the run with them."), said
    assert "model.family='dit9' is no known family" in said


def test_a_mistake_of_a_hand_is_that_of_any_spec(spec):
    spec.write_text(spec.read_text().replace("\ntraining:\n", "\ntraining:\n  stepz: 3\n"))
    assert "did you mean 'steps'?" in refusal(load_recorded_experiment, spec)


def test_no_link_is_read_in_its_place(spec):
    spec.rename(spec.with_name("elsewhere.yaml"))
    spec.symlink_to("elsewhere.yaml")
    assert (
        refusal(load_recorded_experiment, spec)
        == f"{spec}: cannot be read (a link, no plain file); put the run's own file there."
    )
    spec.unlink()
    assert "no such file" in refusal(load_recorded_experiment, spec)


def test_a_sweep_of_a_newer_version_is_refused(tmp_path):
    written = load_sweep(Path("experiments/digits/sweep_schedule.yaml")).to_dict()
    folder = SweepFolder(RunFolder(tmp_path))
    folder.spec.write_bytes(encode_recorded(written))
    assert folder.load_sweep().name == "digits-schedule"
    folder.spec.write_bytes(encode_recorded({**written, "scheduler": {"kind": "hyperband"}}))
    with refused(r"newer than those here \(scheduler\.kind='hyperband' is unknown\)"):
        folder.load_sweep()
