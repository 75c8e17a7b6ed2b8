"""Mistakes of a person end with exit code 2, one sentence, and nothing left behind."""

import pytest

FILES = {
    "list": ("- a\n- b\n", "must be a mapping with names as keys"),
    "empty": ("", "must be a mapping with names as keys"),
    "duplicate key": ("name: a\nname: b\n", "duplicate key"),
    "nan": ("optimizer: {lr: .nan}\n", "write a finite number"),
    "python tag": (
        "name: !!python/object/apply:os.system ['echo hi']\n",
        "YAML tag '!!python/object/apply:os.system'",
    ),
    "custom tag": ("name: !mine x\n", "YAML tag '!mine'"),
    "deep": ("a: " + "[" * 3000 + "]" * 3000, "maximum depth"),
    "itself": ("extends: spec.yaml\n", "closes a circle (spec.yaml -> spec.yaml)"),
    "no parent": ("extends: nowhere.yaml\n", "extends=nowhere.yaml names no file"),
    "no family": ("name: a\nmodel: {depth: 3}\n", "model.family is missing; set it to one of dit"),
    "unknown family": (
        "name: a\nmodel: {family: dti}\n",
        "model.family='dti' is no known family; did you mean 'dit'?",
    ),
}
OVERRIDES = [
    ("trainign.steps=3", "did you mean 'training'?"),
    ("model.dpeth=3", "did you mean 'depth'?"),
    ("engine.zero.stge=3", "did you mean 'stage'?"),
    ("model.depth", "write a dotted path and a value"),
    ("model.depth=abc", "model.depth='abc' must be a whole number"),
    ("schedule.kind=cosin", "schedule.kind='cosin' is unknown; did you mean 'warmup_cosine'?"),
    ("training.epochs=3", "training.steps=4 and training.epochs=3 exclude each other"),
    ("training.steps=null", "training.steps and training.epochs are both null"),
    ("batch.micro=24", "batch.size=32 is no multiple of batch.micro=24"),
    ("resources.workers=3", "batch.size=32 is no multiple of resources.workers=3"),
    ("resources.workers={min: 1, max: 3}", "does not give each of up to 3 workers one"),
    ("engine.zero.offload=nvme", "engine.zero.offload='nvme' must be"),
    ("training.clip={kind: zclip, z: 0}", "training.clip.z=0 must be above 0"),
    ("checkpoint.storage=s4://bucket/x", "checkpoint.storage=s4://bucket/x"),
    ("schedule={kind: constant, warmup: 4}", "schedule.warmup=4 leaves nothing"),
    (
        "schedule={kind: warmup_stable_decay, decay_start: 9}",
        "schedule.decay_start=9 does not lie between",
    ),
    ("model.patch_size=3", "model.image_size=8 is no multiple of model.patch_size=3"),
    ("sampling.guidance=2.0", "sampling.guidance=2 needs a conditional model"),
    (
        "resources.gpus_per_worker=1",
        "needs 1 GPU, this machine has 0; set resources.gpus_per_worker=0",
    ),
    ("resources.workers=2", "resources.workers=2 needs Ray, and --local is one process"),
    ("tracking.uri=htp://x", "tracking.uri='htp://x' is no tracking address"),
    ("tracking.uri=mlruns", "tracking.uri='mlruns' is no tracking address"),
    (
        "tracking.uri=http://me:word@host:5000",
        "tracking.uri=http://me:***@host:5000 holds a password",
    ),
    ("data={kind: mnist}", "ditlab data import mnist"),
    ("data={kind: arrow, path: nowhere}", "nowhere holds no store"),
]
WITH_DATA = [
    ("batch={size: 5000, micro: null}", "batch.size=5000 is larger than the 1617 training samples"),
    ("model.image_size=16", "set model.image_size to 8"),
    ("model.num_classes=5", "set model.num_classes to 10"),
    (
        "checkpoint.storage={spec}/below",
        "checkpoint.storage={spec}/below cannot be written (Not a directory)",
    ),
]


def check(said, message):
    assert said.code == 2, (message, said)
    assert said.out == "" and "Traceback" not in said.err
    assert said.err.startswith("ditlab: ") and said.err.count("\n") == 1
    assert message in said.err


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """The same machine everywhere."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_is_not_trained(ditlab, home, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("base: dit.yaml\nspace: {}\n")
    check(
        ditlab("train", path),
        "a file with `base` is a sweep; name an experiment, or use `ditlab tune`",
    )
    assert not home.exists()


@pytest.mark.parametrize("command", ["validate", "train"])
def test_files(ditlab, home, tmp_path, command):
    path = tmp_path / "spec.yaml"
    for text, message in FILES.values():
        path.write_text(text)
        check(ditlab(command, path), message)
    assert not home.exists()


def test_no_file(ditlab, home):
    for path in ("nowhere.yaml", "."):
        check(ditlab("train", path), "give the path of an experiment's YAML")
    assert not home.exists()


def test_specs(ditlab, home, spec):
    for override, message in OVERRIDES:
        check(ditlab("train", spec, "--local", "--set", override), message)
        assert not home.exists(), override


def test_low_precision_without_partitions(ditlab, home, spec):
    for precision in ("bf16", "fp16"):
        sets = ["--set", f"training.precision={precision}", "--set", "engine.zero.stage=0"]
        check(
            ditlab("train", spec, "--local", *sets),
            f"training.precision={precision} with engine.zero.stage=0",
        )
    assert not home.exists()


def test_specs_that_do_not_fit_the_data(ditlab, home, spec):
    """The embedded digits are imported as a store; a run is not begun."""
    for override, message in WITH_DATA:
        override, message = (
            override.replace("{spec}", str(spec)),
            message.replace("{spec}", str(spec)),
        )
        check(ditlab("train", spec, "--local", "--set", override), message)
        assert {path.name for path in home.glob("*")} <= {"stores", "home.json"}, override
        assert {path.name for path in home.glob("stores/*") if not path.name.startswith(".")} <= {
            "digits"
        }, override


def test_home_that_cannot_be_written(ditlab, spec, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(spec / "home"))
    check(ditlab("train", spec, "--local"), f"DITLAB_HOME={spec}/home cannot be written")


def test_unknown_runs(ditlab, home, tmp_path):
    for command in (["sample"], ["evaluate"], ["figures"], ["export", "--out", "exported"]):
        check(ditlab(command[0], "nope", *command[1:]), "run 'nope' is unknown")
        assert not [
            path for path in home.rglob("*") if path.is_file() and "caches" not in path.parts
        ], command
    assert not (tmp_path / "exported").exists()


def test_resume_of_an_unknown_run(ditlab, home, spec):
    check(ditlab("train", spec, "--local", "--resume", "nope"), "run 'nope' is unknown")
    assert not home.exists()


def test_local_and_address(ditlab, home, spec):
    check(
        ditlab("train", spec, "--local", "--address", "x:1"),
        "--local and --address x:1 exclude each other",
    )
    assert not home.exists()


def test_unknown_figure(ditlab, home):
    check(ditlab("figures", "--kind", "schedles"), "did you mean 'schedules'?")
