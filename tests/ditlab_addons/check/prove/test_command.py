"""`ditlab prove` and `ditlab train --prove`: the table, what a run keeps, wrong input, experiments
that are shipped.
"""

import json
import math
from dataclasses import replace

import pytest

from ditlab.spec.files import load_experiment
from ditlab_addons.check.prove.findings import PHASES, Findings, Proof, ProofComparison
from ditlab_addons.check.prove.proving import describe_engine
from ditlab_models.parameters import count_parameters
from support.command import run_inside
from support.documents import CHECKOUT
from support.planted.copies import copies
from support.planted.faults import DIT, FAULTS
from support.specs import FILES

EXPERIMENTS = CHECKOUT / "experiments"
FACTS = {"date": "2026-11-23T12:00:00Z", "spec_hash": "0" * 64, "code": "c" * 64, "torch": "2.13.0"}

ENDLESS = (
    ProofComparison("loss", "a NaN", math.nan, 1.0),
    ProofComparison("loss", "endless", math.inf, 1.0),
)


def proof(*comparisons):
    engine = describe_engine(load_experiment(EXPERIMENTS / "digits/dit.yaml"), use_gpu=False)
    return Proof(comparisons, "digits-dit", engine, 3.2, FACTS)


def test_a_table_fits_a_terminal_and_counts_what_is_off():
    modules = [f"network.{'blocks.' * 9}{number}" for number in range(12)]
    found = proof(
        *(
            ProofComparison(phase, "a quantity with a name that is long " * 3, 1e-9, 0.0, "x" * 200)
            for phase in PHASES
        ),
        *(
            ProofComparison(
                "gradient", "by module", number * 1e-3, 2.5e-3, "", module, 1.0, times=20
            )
            for number, module in enumerate(modules)
        ),
        *ENDLESS,
        ProofComparison("norm", "alike", 0.0, 0.0),
    )
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    (modules_line,) = [line for line in lines if "by module (240)" in line]
    assert modules_line.split()[-3:] == ["1.1e-02", "2.5e-03", "off"]
    (same,) = [line for line in lines if "alike (1)" in line]
    assert same.split()[-3:] == ["0.0e+00", "exact", "holds"]
    assert any("nan" in line and line.endswith("off") for line in lines)
    assert not found.holds
    assert found.verdict.startswith(f"{len(PHASES) + 11} of {len(PHASES) + 15} quantities are off")


def test_the_first_that_is_off_is_named_by_phase_and_module():
    holds = ProofComparison("loss", "velocity", 1e-8, 1e-7)
    found = proof(
        holds,
        ProofComparison("update", "by module", 1.0, 1e-6, "", "network.head", 1.0),
        ProofComparison("gradient", "by module", 0.2, 1e-6, "", "network.blocks.0.mlp", 1.0),
        ProofComparison(
            "gradient",
            "by module",
            0.5,
            1e-6,
            "half of it",
            "network.blocks.1.mlp",
            1.0,
            times=20,
            steps=(5, 10),
        ),
        ProofComparison("gradient", "by module", 0.0, 1e-6, "", "network.head", 1.0),
    )
    assert found.first_off == (
        "First off: gradient, by module of network.blocks.1.mlp in steps 5, 10, by 0.5 where "
        "rounding explains 1e-06 (half of it)."
    )
    assert found.summary.startswith("3 of 5 quantities are off; 1 worker on CPU, ZeRO 1, fp32")
    assert proof(holds).summary.endswith("; code cccccccccccc, torch 2.13.0, 2026-11-23T12:00:00Z")
    assert not proof().holds and proof().verdict == "Nothing was compared."


def test_of_many_steps_the_furthest_off_is_kept_with_the_steps_and_the_first_stage():
    findings = Findings()
    for stage, step, distance in ((0, 1, 0.1), (0, 2, 3.0), (0, 3, 0.2), (0, 4, 5.0), (1, 5, 9.0)):
        findings.stage, findings.step = stage, step
        findings.near("loss", "velocity", distance, 1.0)
    (one,) = findings.all()
    assert (one.distance, one.step, one.times, one.steps, one.stage) == (5.0, 4, 5, (2, 4, 5), 0)


def test_what_rounding_would_hide_is_printed_and_json_holds_no_number_that_json_lacks():
    found = proof(*ENDLESS)
    found = replace(found, untold=("A gradient of head is " * 9,))
    assert sum("A gradient of head" in line for line in str(found).splitlines()) > 1
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [each["distance"] for each in read["comparisons"]] == ["nan", "inf"]
    assert (read["holds"], read["made_by"], read["untold"]) == (False, FACTS, list(found.untold))


WRONG = (
    (("prove", "digits/sweep_schedule.yaml"), "a file with `base` is a sweep; name an experiment"),
    (("prove", "digits/dit.yaml", "--set", "model.dpeth=3"), "model.dpeth"),
    (("prove", "pixelhdm/base.yaml"), "images holds no store"),
    (
        ("prove", "digits/dit.yaml", "--set", "resources.workers=64"),
        "more processes than this machine proves with",
    ),
    (("train", "digits/dit.yaml", "--prove", "--dry-run"), "--dry-run starts nothing"),
    (
        ("train", "digits/dit.yaml", "--prove", "--address", "10.0.0.1:6379"),
        "run `ditlab prove` on one of its nodes",
    ),
)


def test_wrong_input_is_told_in_a_sentence(tmp_path):
    for (command, spec, *rest), words in WRONG:
        said = run_inside(command, EXPERIMENTS / spec, *rest, home=tmp_path / "home", cwd=tmp_path)
        said.refused(words)
        assert not (tmp_path / "home" / "train").exists()


@pytest.mark.slow
def test_gpus_that_are_not_here_are_said_to_be_missing(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(DIT.replace("width: 32, depth: 2", "width: 16, depth: 1"))
    said = run_inside(
        "prove", spec, "--set", "resources.gpus_per_worker=1", "--json", home=tmp_path / "home"
    ).ok()
    assert (
        "the spec asks for GPUs (1), this machine has 0: a proof on the CPU" in said.json["engine"]
    )
    assert said.json["holds"] and sum(each["times"] for each in said.json["comparisons"]) > 1000
    assert not (tmp_path / "home" / "train").exists()
    assert not (tmp_path / "home" / "mlflow.db").exists()


@pytest.mark.slow
def test_a_run_keeps_its_proof(tmp_path):
    home, spec = tmp_path / "home", tmp_path / "spec.yaml"
    spec.write_text(DIT)
    short = ("--set", "training.steps=2", "--set", "schedule.warmup=0")
    said = run_inside(
        "train", spec, "--prove", "--local", "--no-figures", *short, "--json", home=home
    ).ok()
    assert "proof: All" in said.err, said.err
    folder = home / "train" / said.json["run_id"]
    kept = json.loads((folder / "proof.json").read_text())
    assert kept["holds"]
    assert kept["made_by"]["torch"]
    assert "All" in (folder / "proof.txt").read_text()
    shown = run_inside("runs", "show", folder.name, "--json", home=home).json
    numbers = {
        kind: sum(each["times"] for each in kept["comparisons"] if each["is_property"] == kind)
        for kind in (False, True)
    }
    assert shown["proof"].startswith(
        f"holds, {numbers[False]:,} comparisons with the reference and {numbers[True]:,} "
        "properties; 1 worker on CPU"
    )
    stored = sorted(path.name for path in (home / "artifacts").rglob("proof.*"))
    assert stored == ["proof.json", "proof.txt"]


@pytest.mark.slow
def test_nothing_is_trained_where_the_proof_finds_something_off(tmp_path):
    fault = next(each for each in FAULTS if each.name == "clipping left out")
    with copies(tmp_path / "copies") as code:
        answer = code.run(fault, DIT, ["train", "spec.yaml", "--prove", "--local", "--json"])
    assert answer.code == 1 and "nothing was trained: " in answer.err, answer.err
    assert not answer.json["proof"]["holds"] and "clipping" in answer.err
    assert not list((tmp_path / "copies").rglob("run.json"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_shipped_experiments_prove(tmp_path):
    proved = 0
    for path in FILES:
        spec = load_experiment(path)
        if spec.data.kind in ("arrow", "mnist"):  # stores outside a checkout
            continue
        num = count_parameters(spec.model, spec.objective, spec.training).total
        if num > 4_000_000:
            continue  # minutes, and gigabytes of copies of the state
        said = run_inside("prove", path, "--json", home=tmp_path / "home", cwd=tmp_path).ok()
        assert said.json["holds"], f"{path}: {said.err}"
        proved += 1
    assert proved >= 8
