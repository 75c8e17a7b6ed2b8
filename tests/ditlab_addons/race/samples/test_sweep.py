"""Sweeps over the samples of a trained run: samples of `ditlab sample`, a ledger that is resumed,
and refusals.
"""

import sys
from pathlib import Path

import pytest

import ditlab
from ditlab.home import Home
from ditlab.quality import classifier as classifiers
from ditlab.spec.yaml_text import dump_yaml
from ditlab_addons.race.samples.spec import load_sampling_sweep
from support.clusters.faults import wait_until
from support.command import start_process
from support.damage import refused
from support.trainings.family_specs import smallest


def grid(path, *values):
    """An axis by its path."""
    return {path: {"kind": "grid", "values": list(values)}}


STEPS = grid("sampling.steps", 1, 2)
METRICS = {"region": "quality/r2", "dlm": "quality/bigram_perplexity"}
SPACES = {
    "dit": STEPS | grid("sampling.guidance", 1.0, 2.0) | grid("ema", None, 0.1),
    "unet": STEPS | grid("sampling.solver", "euler", "heun"),
    "pixelhdm": STEPS | grid("sampling.interval", [0.0, 1.0], [0.2, 0.6]),
    "region": grid("sampling.solver", "ddpm", "ddim") | grid("sampling.steps", 2),
    "dlm": STEPS | grid("sampling.temperature", 0.5, 1.0),
}


@pytest.fixture
def few_steps(monkeypatch):
    """Train the classifier, by which samples are measured, for 20 steps."""
    monkeypatch.setattr(classifiers, "STEPS", 20)


@pytest.fixture
def small(own_home, tmp_path, monkeypatch, few_steps):
    """A copy of the shared run."""
    monkeypatch.chdir(tmp_path)
    return ditlab.open_run("small")


def written(folder, run, space=STEPS, **changes):
    """A sweep of 20 samples from two seeds, as a file."""
    mapping = {
        "name": "settings",
        "base": {"run": run},
        "space": space,
        "metric": "quality/frechet",
        "samples": 20,
    }
    path = folder / "sweep.yaml"
    path.write_text(dump_yaml({**mapping, "seeds": 2, **changes}), encoding="utf-8")
    return path


def files(sweep_id):
    """The samples of every draw: file by name."""
    draws = Home.from_environment().run(sweep_id).path.glob("points/*/*.safetensors")
    return {f"{path.parent.name}/{path.name}": path for path in draws}


def check_equal_to_sample(run, result, batch=256):
    """Every draw is, byte for byte, the file of `ditlab sample` with the options that the sweep
    names.
    """
    kept = files(result.sweep_id)
    sweep = load_sampling_sweep(Home.from_environment().run(result.sweep_id).path / "sweep.yaml")
    assert len(kept) == len(sweep.configurations()) * sweep.seeds
    for configuration in sweep.configurations():
        for seed in sweep.noise_seeds():
            drawn = run.sample(
                sweep.samples,
                seed=seed,
                ema=configuration.ema,
                overrides=configuration.overrides(),
                batch=batch,
            )
            _, numbers, *_ = drawn.save(f"drawn-{configuration.number}-{seed}")
            assert (
                kept[f"{configuration.number:04d}/seed{seed}.safetensors"].read_bytes()
                == numbers.read_bytes()
            )


def test_an_interrupted_sweep_goes_on_and_its_samples_are_those_of_sample(
    small, blank_pictures, monkeypatch, cli
):
    def interrupt(what, done, total, unit="bytes"):
        if what.startswith("3 of 4 draws"):
            raise KeyboardInterrupt

    first = ditlab.sweep_samples(written(Path.cwd(), small.id), on_progress=interrupt)
    assert (first.status, first.exit_code, first.to_dict()["options"]) == (
        "interrupted",
        130,
        ["--set", "sampling.steps=1"],
    )
    statuses = [trial["status"] for trial in first.to_dict()["trials"]]
    assert statuses == ["finished"] * 2 + ["waiting"] * 2
    said = []
    last = ditlab.sweep_samples(
        resume=first.sweep_id, on_progress=lambda what, *_: said.append(what)
    )
    assert last.status == "finished" and any(what.startswith("1 of 2 draws") for what in said)
    check_equal_to_sample(small, last)
    one, two = (configuration.metrics for configuration in last.summary.trials)
    assert (one["cost/evaluations"], two["cost/evaluations"]) == (1, 2) and one["cost/seconds"] > 0
    assert {"quality/frechet", "quality/kernel", "quality/nearest"} <= one.keys()
    with refused(r"was started as another one: samples=30 \(was 20\)"):
        ditlab.sweep_samples(written(Path.cwd(), small.id, samples=30), resume=last.sweep_id)
    plan = ditlab.plan_samples(written(Path.cwd(), small.id, seeds=3), resume=last.sweep_id)
    assert plan.forecast.num_draws == 2 and plan.to_dict()["seeds"] == [0, 20, 40]
    cli("sample", last.sweep_id).refused("none of its trials has begun")
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    assert last.sweep_id in cli("runs").out
    for command, text in {"runs show": "sweep of 4 trials", "report": "report.html"}.items():
        assert text in cli(*command.split(), last.sweep_id).out


@pytest.mark.slow
@pytest.mark.parametrize("family", SPACES)
def test_samples_of_every_family_are_those_of_sample(family, tmp_path, monkeypatch, few_steps):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    changes = {"training__averages": {}} if family == "dit" else {}
    changes |= {"model__corruption": "ddpm"} if family == "region" else {}
    run = ditlab.train(smallest(family, **changes), local=True).run
    mode = "max" if family == "region" else "min"
    path = written(
        tmp_path,
        run.id,
        SPACES[family],
        metric=METRICS.get(family, "quality/frechet"),
        mode=mode,
        batch=16,
    )
    plan = ditlab.plan_samples(path)
    result = ditlab.sweep_samples(path)
    assert result.status == "finished"
    assert len(result.summary.trials) == len(plan.session.configurations)
    assert all(
        configuration.metrics["cost/evaluations"] == plan.forecast.evaluations[configuration.number]
        for configuration in result.summary.trials
    )
    assert (result.report.parent / "samples.png").exists()
    check_equal_to_sample(run, result, batch=16)


@pytest.mark.slow
def test_a_killed_sweep_is_resumed_with_whole_draws_alone(small):
    path = written(Path.cwd(), small.id, grid("sampling.steps", 1, 2, 300, 400), seeds=3)
    home = Home.from_environment()
    process = start_process("tune", path, home=home.root)
    wait_until(lambda: any(home.runs.glob("*/points.jsonl")), 120, "a ledger")
    process.kill()
    process.communicate()
    [ledger] = home.runs.glob("*/points.jsonl")
    sweep_id = ledger.parent.name
    kept = files(sweep_id)
    assert 0 < len(kept) < 12
    result = ditlab.sweep_samples(resume=sweep_id)
    assert result.status == "finished" and len(files(sweep_id)) == 12
    check_equal_to_sample(small, result)


def test_a_dry_run_counts_network_evaluations(small, cli):
    path = written(Path.cwd(), small.id, grid("sampling.solver", "euler", "heun") | STEPS)
    found = cli("tune", path, "--dry-run", "--json").json
    assert [configuration["evaluations"] for configuration in found["points"]] == [1, 2, 2, 4]
    assert (found["draws"], found["evaluations"]) == (8, 2 * 20 * 9)
    assert not [*Home.from_environment().runs.glob("*/sweep.yaml")]
    assert cli("validate", path).out.endswith("valid (sweep over samples, 4 configurations)\n")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"space": grid("optimizer.lr", 1)}, "space.optimizer.lr changes the training"),
        ({"space": grid("sampling.mask", 1)}, "space.sampling.mask changes what is drawn"),
        (
            {"space": {"sampling.steps": {"kind": "uniform", "low": 1.0, "high": 2.0}}},
            "has no end of values",
        ),
        (
            {"space": grid("sampling.solver", "ddim")},
            "sampling.solver=ddim is for objective.process=gaussian",
        ),
        ({"space": grid("sampling.stpes", 1)}, "did you mean 'steps'"),
        ({"space": grid("ema", 0.1)}, "keeps no averages"),
        ({"metric": "quality/r2"}, "metric=quality/r2 is not measured on the samples"),
        ({"samples": 5}, "samples=5 must be at least 20"),
    ],
)
def test_refusals_are_one_sentence(changes, message, small, tmp_path):
    path = written(tmp_path, small.id, **changes)
    with refused(message):
        ditlab.sweep_samples(path)
