"""Compares what two commits compute: digests of states, losses, receipts and samples, and the keys
of `--json` outputs.

    python tests/regression/compare_commits.py BEFORE [--after COMMIT] [--all] [--only WORD]
        [--list]

Both sides run on this machine in one call, with one thread, each from a git worktree (the later
side is this checkout itself unless `--after` names a commit). Ten configurations by default.
`--all`: the five families in fp32 under ZeRO 0 to 3 and in bf16 under 1 to 3, on one worker and on
two (Ray), a kill and a resume, a fork, an optimiser with matrices, a sweep of three trials, samples
of every family, and the keys of each command's `--json`. Names that changed are those of
renamed.json. Prints a line a configuration; ends with exit code 1 if any digest differs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
FAMILIES = ("dit", "unet", "region", "dlm", "pixelhdm")
RENAMED: dict[str, str] = json.loads(Path(__file__).with_name("renamed.json").read_text())
"""Names of before and of now: of keys, metrics and fields."""
VARYING = ("time/", "perf/", "system/", "train/samples_per_second", "train/data_wait")
"""Beginnings of names of metrics that measure the machine."""
TEN = (
    "dit fp32 zero1 workers1",
    "dit bf16 zero2 workers1",
    "unet fp32 zero0 workers1",
    "region bf16 zero3 workers1",
    "dlm bf16 zero1 workers1",
    "pixelhdm fp32 zero2 workers1",
    "dit fp32 zero3 workers2",
    "killed and resumed",
    "forked",
    "keys",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("before", nargs="?", help="commit of the earlier side")
    parser.add_argument("--after", help="commit of the later side; default: this checkout as it is")
    parser.add_argument("--all", action="store_true", help="every configuration")
    parser.add_argument("--only", default="", help="configurations whose name holds this word")
    parser.add_argument("--list", action="store_true", help="print the names of the configurations")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        return run_side(arguments.side)
    names = [
        name
        for name in configurations()
        if arguments.only in name and (arguments.all or name in TEN)
    ]
    if arguments.list:
        print("\n".join(names))
        return 0
    if not arguments.before or not names:
        parser.error("name a commit to compare with, and at least one configuration")
    later = worktree(arguments.after) if arguments.after else nullcontext(CHECKOUT)
    with (
        tempfile.TemporaryDirectory() as folder,
        worktree(arguments.before) as before,
        later as after,
    ):
        specs = Path(folder, "specs")
        write_specs(specs)
        sides = [
            Side(root, Path(folder, name), specs, names)
            for root, name in ((before, "before"), (after, "after"))
        ]
        return compare(names, *(side.digests() for side in sides))


def compare(names: list[str], before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print a line a configuration, and what differs; return the exit code."""
    num_different = 0
    for name in names:
        first, second = (side.get(name, {"error": "no result"}) for side in (before, after))
        different = sorted(
            key for key in first.keys() | second.keys() if first.get(key) != second.get(key)
        )
        holds = not different and "error" not in first
        num_different += not holds
        print(f"{'same     ' if holds else 'DIFFERENT'}  {name}: {', '.join(sorted(first))}")
        if not holds and not different:
            different = ["error"]
        for key in different:
            for place, old, new in differences(first.get(key), second.get(key), key):
                print(f"    {place}: before {str(old)[:2000]}")
                print(f"    {place}: after  {str(new)[:2000]}")
    print(f"{len(names) - num_different} of {len(names)} configurations are the same")
    return int(num_different > 0)


def differences(before: Any, after: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost places at which two digests differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield from differences(before.get(key), after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        gone = [each for each in before if each not in after]
        yield place, gone, [each for each in after if each not in before]
    else:
        yield place, before, after


def configurations() -> Iterator[str]:
    """Names of all configurations."""
    for workers in (1, 2):
        for family in FAMILIES:
            for precision in ("fp32", "bf16"):
                # the spec refuses bf16 under stage 0
                for stage in range(int(precision == "bf16"), 4):
                    yield f"{family} {precision} zero{stage} workers{workers}"
    yield from ("muon", "killed and resumed", "forked", "sweep of three trials", "keys")


def write_specs(folder: Path) -> None:
    """Write the smallest experiment of each family for both sides, and a sweep."""
    sys.path[:0] = [str(CHECKOUT / name) for name in ("platform", "models", "tests")]
    from support.trainings.family_specs import smallest

    folder.mkdir(parents=True)
    for family in FAMILIES:
        spec = smallest(family).to_dict()
        spec |= {
            "name": family,
            "evaluation": {"every": 3, "samples": 2},
            "checkpoint": {"every": 3},
        }
        spec["training"] = {**spec["training"], "steps": 6}
        (folder / f"{family}.json").write_text(json.dumps(spec))
    sweep = {
        "name": "sweep",
        "base": "dit.json",
        "search": {"kind": "grid"},
        "scheduler": {"kind": "none"},
        "space": {"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-3, 1e-4]}},
        "metric": "eval/velocity",
        "mode": "min",
    }
    (folder / "sweep.json").write_text(json.dumps(sweep))


class Side:
    """One of the two commits: its sources, its home, and a process that runs the configurations."""

    def __init__(self, root: Path, folder: Path, specs: Path, names: list[str]) -> None:
        self._root, self._folder, self._specs, self._names = root, folder, specs, names

    def digests(self) -> dict[str, Any]:
        """Run every configuration; their digests by name."""
        self._folder.mkdir()
        job, out = self._folder / "job.json", self._folder / "digests.jsonl"
        task = {"names": self._names, "specs": str(self._specs), "out": str(out)}
        job.write_text(json.dumps(task))
        environment = {
            **os.environ,
            "DITLAB_HOME": str(self._folder / "home"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONPATH": f"{self._root}/platform:{self._root}/models",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        begun = time.monotonic()
        with (self._folder / "log").open("w") as log:
            command = [sys.executable, __file__, "--side", str(job)]
            output = {"stdout": log, "stderr": log}
            subprocess.run(command, env=environment, cwd=self._folder, **output, check=False)
        print(f"{self._root.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        if not out.exists():
            sys.exit(f"no configuration ran: {(self._folder / 'log').read_text()[-3000:]}")
        rows = map(json.loads, out.read_text().splitlines())
        return {row["name"]: row["digests"] for row in rows}


def run_side(job: Path) -> int:
    """Run configurations in this process, whose PYTHONPATH names the side's sources, and append a
    line for each.
    """
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    # Add-ons are found on the whole path: without those of a checkout that is installed to be
    # edited.
    sys.path[:] = [
        place for place in sys.path if place in own or not Path(place, "ditlab_addons").is_dir()
    ]
    import torch

    torch.set_num_threads(1)
    task = json.loads(job.read_text())
    specs = Path(task["specs"])
    for name in task["names"]:
        try:
            digests = run_configuration(name, specs)
        # a side that fails is a difference, the others are still compared
        except BaseException as error:
            digests = {"error": f"{type(error).__name__}: {error}"}
        with Path(task["out"]).open("a") as out:
            out.write(json.dumps({"name": name, "digests": digests}) + "\n")
    return 0


def run_configuration(name: str, specs: Path) -> dict[str, Any]:
    """Train what a name says, in the side's own process; its digests."""
    dit = specs / "dit.json"
    if name == "keys":
        return keys_of_commands(specs)
    if name == "muon":
        return run_digests(train(dit, "optimizer={kind: muon, lr: 0.01}"))
    if name == "forked":
        parent = train(dit, "name=parent")
        at = f"{parent['run_id']}@3"
        return run_digests(train(dit, "name=fork", "training.steps=9", flags=["--from", at]))
    if name == "killed and resumed":
        digests = run_digests(killed_and_resumed(dit))
        del digests["receipts"]  # they say at which step the run was killed
        return digests
    if name == "sweep of three trials":
        return sweep_digests(command("tune", str(specs / "sweep.json")))
    family, precision, stage, workers = name.split()
    result = train(
        specs / f"{family}.json",
        f"training.precision={precision}",
        f"engine.zero.stage={stage[-1]}",
        f"resources.workers={workers[-1]}",
        f"name={name.replace(' ', '-')}",
        is_local=workers != "workers2",
    )
    return run_digests(result)


def training(
    spec: Path, changes: Sequence[str], flags: Sequence[str] = (), is_local: bool = True
) -> list[str]:
    """Words of a training with changes of its spec."""
    settings = [word for change in changes for word in ("--set", change)]
    return ["train", str(spec), "--no-figures", *["--local"] * is_local, *settings, *flags]


def train(spec: Path, *changes: str, **options: Any) -> dict[str, Any]:
    return command(*training(spec, changes, **options))


def killed_and_resumed(spec: Path) -> dict[str, Any]:
    """Train in a process that is killed after its first checkpoint, and go on here."""
    changes = ("name=killed", "training.steps=60", "checkpoint.every=20")
    child = subprocess.Popen([sys.executable, "-m", "ditlab", *training(spec, changes)])
    home, limit = Path(os.environ["DITLAB_HOME"]), time.monotonic() + 120
    while time.monotonic() < limit and child.poll() is None:
        manifests = home.glob("train/*/checkpoints/*/manifest.json")
        if "killed" in map(newest_name, manifests):
            break
        time.sleep(0.02)
    child.kill()
    child.wait()
    return train(spec, *changes, flags=["--resume", "auto"])


def newest_name(manifest: Path) -> str:
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((manifest.parents[2] / "run.json").read_text())["name"])
    return ""


def command(*arguments: str) -> dict[str, Any]:
    """Run `ditlab ARGUMENTS --json` in this process; the object on its last line."""
    from ditlab.cli.main import main as ditlab

    out, err, code = StringIO(), StringIO(), 0
    argv, sys.argv = sys.argv, ["ditlab", *arguments, "--json"]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            ditlab()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = argv
    if not out.getvalue().strip():
        raise RuntimeError(f"{' '.join(arguments)}: exit code {code}, {err.getvalue()[-1500:]}")
    found = json.loads(out.getvalue().splitlines()[-1])
    return {**found, "exit code": code}


def run_digests(result: dict[str, Any]) -> dict[str, Any]:
    """Digests of a trained run: its status, last checkpoint, metrics, receipts and samples."""
    folder = Path(os.environ["DITLAB_HOME"], "train", result["run_id"])
    samples = Path(os.environ["DITLAB_HOME"]).parent / f"samples-{result['run_id']}"
    command("sample", result["run_id"], "--num", "2", "--seed", "5", "--out", str(samples))
    kinds = (".png", ".txt", ".npy", ".bed")
    pictures = sorted(path for path in samples.rglob("*") if path.suffix in kinds)
    return {
        "status": [result["status"], result["step"]],
        "state": state_digest(Path(result["checkpoint"])),
        "losses": text_digest(losses(folder)),
        "receipts": [bytes_digest(path.read_bytes()) for path in sorted(folder.rglob("steps.bin"))],
        "samples": [f"{path.name} {sample_digest(path)}" for path in pictures],
    }


def sweep_digests(result: dict[str, Any]) -> dict[str, Any]:
    """Digests of a sweep: the losses of its trials in order of their values, and the best one's
    values.
    """
    trials = sorted(result["trials"], key=lambda trial: json.dumps(trial["values"], sort_keys=True))
    runs = Path(os.environ["DITLAB_HOME"], "train")
    found = {
        json.dumps(trial["values"]): text_digest(losses(runs / trial["run_id"])) for trial in trials
    }
    return {**found, "keys": shape(result), "exit code": result["exit code"]}


def losses(folder: Path) -> list[Any]:
    """Logged metrics that do not measure the machine, by step and name."""
    rows = []
    for line in (folder / "journal.jsonl").read_text().splitlines():
        with suppress(ValueError):  # the line that a kill cut short
            record = json.loads(line)
            if record["kind"] == "metrics":
                items = record["values"].items()
                rows += [
                    [record["step"], RENAMED.get(name, name), value]
                    for name, value in items
                    if not name.startswith(VARYING)
                ]
    return sorted(rows)


def state_digest(checkpoint: Path) -> str:
    """Digest of every tensor of a checkpoint: weights, moments, averages."""
    import torch
    from safetensors import safe_open

    pieces = []
    for shard in checkpoint.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  it is no mapping
                tensor = opened.get_tensor(key).contiguous().flatten()
                content = tensor.view(torch.uint8).numpy().tobytes()
                pieces.append(f"{key} {tensor.dtype} {bytes_digest(content)}")
    return text_digest(sorted(pieces))


def sample_digest(path: Path) -> str:
    """Digest of a sample's file; of a picture's pixels alone, as its texts name the run."""
    if path.suffix != ".png":
        return bytes_digest(path.read_bytes())
    from PIL import Image

    with Image.open(path) as picture:
        return bytes_digest(picture.tobytes())


def keys_of_commands(specs: Path) -> dict[str, Any]:
    """Keys of each command's `--json`, with the types of their values."""
    dit, out = str(specs / "dit.json"), Path(os.environ["DITLAB_HOME"]).parent / "keys"
    first = train(Path(dit), "name=keys")
    run, other = first["run_id"], train(Path(dit), "name=other")["run_id"]
    commands = (
        f"sample {run} --num 2 --out {out}/sample",
        f"evaluate {run}",
        f"compare {run} {other} --out {out}/compare",
        f"params {dit}",
        f"plan {dit}",
        f"validate {dit}",
        f"show {dit}",
        f"figures {run} --out {out}/figures",
        f"export {run} --out {out}/export",
        f"report {run}",
        f"profile {dit} --out {out}/profile",
        f"prove {dit}",
        f"replay {run} --step 4",
        f"verify {run} --steps 1",
        "runs",
        f"runs show {run}",
        f"runs rename {run} renamed",
        "runs sync",
        "data list",
        "doctor",
        f"tune {specs}/sweep.json --dry-run",
        f"train {dit} --local --dry-run",
    )
    found: dict[str, Any] = {"train": shape(first)}
    for number, words in enumerate(commands):
        name = f"{number} {words.split()[0]}"  # paths and ids differ between the sides
        try:
            found[name] = shape(command(*words.split()))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:80]}"
    from ditlab.cli.main import main as ditlab

    text, argv = StringIO(), sys.argv
    sys.argv = ["ditlab", "schema"]
    with redirect_stdout(text), suppress(SystemExit):
        ditlab()
    sys.argv = argv
    return {**found, "schema": sorted(schema_names(json.loads(text.getvalue())))}


def schema_names(schema: Any) -> set[str]:
    """Names of all fields of a JSON schema, and `kind=NAME` of all kinds."""
    found: set[str] = set()
    if isinstance(schema, dict):
        fields = schema.get("properties", {})
        found.update(fields)
        if isinstance(fields.get("kind"), dict) and "const" in fields["kind"]:
            found.add(f"kind={fields['kind']['const']}")
    children = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict | list):
        found.update(*map(schema_names, children))
    return {RENAMED.get(name, name) for name in found}


def shape(value: Any) -> Any:
    """The keys of an object, recursively, and the types of what is not one; of a list, the shapes
    that occur in it.
    """
    if isinstance(value, dict):
        return {plain_key(key): shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return sorted({json.dumps(shape(each), sort_keys=True) for each in value})
    return type(value).__name__


def plain_key(key: str) -> str:
    """A key by its name of now, without what differs by run or machine."""
    if "/" in key and Path(key).is_absolute():
        return "PATH"
    return RENAMED.get(key, key)


def text_digest(value: Any) -> str:
    return bytes_digest(json.dumps(value).encode())


def bytes_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a folder of their own for the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, commit[:12].replace("/", "-"))

        def git(*words: str) -> None:
            subprocess.run(["git", "worktree", *words], cwd=CHECKOUT, check=True)

        git("add", "--quiet", "--detach", str(path), commit)
        try:
            yield path
        finally:
            git("remove", "--force", str(path))


if __name__ == "__main__":
    sys.exit(main())
