"""Commands on runs whose attention stays within documents: training, resume, evaluation, samples,
figures.
"""

import json

import pytest

from ditlab.spec.files import load_experiment
from support.command import run_inside
from support.trainings.workers import newest, same_state, train_here, train_workers

SPEC = """\
name: packed
model:
  {family: dlm, length: 32, vocabulary: 256, width: 16, depth: 1, num_heads: 2, condition_width: 8, time_width: 8}
data: {kind: arrow, path: a, packing: masked, hold_out: 0.2}
batch: {size: 8, micro: 2}
optimizer: {kind: adamw, lr: 0.05}
training: {steps: 6}
checkpoint: {every: 2}
evaluation: {every: 2, samples: 2, limit: 8}
sampling: {steps: 3}
tracking: {system_metrics: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of short documents, several to a row."""
    folder = tmp_path_factory.mktemp("packed")
    lines = [json.dumps({"text": f"number {number}"}) for number in range(400)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    words = ("--source", "a.jsonl", "--length", "32", "--name", "a")
    run_inside("data", "import", "text", *words, home=folder / "home", cwd=folder).ok()
    (folder / "packed.yaml").write_text(SPEC)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [[], ["model.block_size=8", "sampling.block={}"]])
def test_resume_is_exact_and_workers_train_on_the_same_numbers(folder, tmp_path, blocks):
    """Also with activations recomputed."""
    home = folder / "home"
    place = home / "stores" / "a"
    changes = [*blocks, "engine.activation_checkpointing=true", f"data.path={place}"]
    spec = load_experiment(folder / "packed.yaml", changes)
    _, straight = train_here(spec, home, tmp_path / "straight")
    train_here(spec, home, tmp_path / "stopped", stop_after=4)
    train_here(spec, home, tmp_path / "stopped")
    assert same_state(newest(tmp_path / "straight"), newest(tmp_path / "stopped"))
    (found,) = train_workers([(spec.replace("resources.workers", 2), home, tmp_path / "two")], 2)
    assert found == pytest.approx(straight.losses, rel=1e-5)
    joined = spec.replace("data.packing", "joined")
    _, other = train_here(joined, home, tmp_path / "joined")
    assert other.losses[1] == straight.losses[1], "an untrained network is the identity"
    assert abs(other.losses[6] - straight.losses[6]) > 1e-4


@pytest.mark.slow
def test_a_run_is_evaluated_sampled_and_drawn(folder):
    place = {"home": folder / "home", "cwd": folder}
    said = run_inside("train", "packed.yaml", "--local", "--no-figures", "--json", **place).ok()
    run = str(said.json["run_id"])
    for command in (
        ("evaluate", run),
        ("sample", run, "--num", "2"),
        ("figures", run, "--kind", "attention"),
    ):
        run_inside(*command, "--json", **place).ok()
