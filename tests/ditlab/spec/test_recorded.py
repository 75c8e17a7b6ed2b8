"""A run's spec is marked with its hash: an edit is said, and counts."""

from pathlib import Path
from typing import Any

import pytest

from ditlab.spec import recorded
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.spec.recorded import encode_recorded, load_recorded_experiment
from ditlab.storage.checksums import is_edited


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec as DiTLab writes it into a run's folder."""
    monkeypatch.setattr(recorded, "_said", set())
    file = tmp_path / "spec.yaml"
    file.write_bytes(encode_recorded(load_experiment(Path("experiments/digits/dit.yaml")).to_dict()))
    return file


def load(spec: Path, caplog: Any) -> tuple[Experiment, str]:
    caplog.clear()
    return load_recorded_experiment(spec), caplog.text


def test_what_was_written_is_read_without_a_word(spec: Path, caplog: Any) -> None:
    experiment, said = load(spec, caplog)
    assert experiment == load_experiment(Path("experiments/digits/dit.yaml")) and said == ""


def test_an_edit_counts_and_is_said_once(spec: Path, caplog: Any) -> None:
    spec.write_text(spec.read_text().replace("seed: 0", "seed: 7"))
    experiment, said = load(spec, caplog)
    assert experiment.seed == 7 and f"{spec} was changed since DiTLab wrote it" in said
    assert load(spec, caplog)[1] == ""


def test_a_spec_without_a_hash_is_of_the_former_version(spec: Path, caplog: Any) -> None:
    spec.write_text("".join(spec.read_text().splitlines(keepends=True)[:-1]))
    assert load(spec, caplog)[1] == ""


def test_every_changed_bit_above_the_hash_is_noticed(spec: Path) -> None:
    whole = spec.read_bytes()
    for bit in range(8 * whole.rindex(b"# SHA-256")):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        assert is_edited(bytes(content))
