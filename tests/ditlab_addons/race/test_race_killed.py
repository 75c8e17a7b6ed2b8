"""A race whose launcher, workers and node are killed ends as one that was not."""

import json
import signal

import psutil
import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from support.clusters.faults import processes_of, wait_until, worker_processes
from support.command import run_process, start_process
from support.sweeps import small_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = ("worker", "launcher", "node", "worker", "launcher") * 2


def written(folder):
    """A race of three configurations, of which two are close: three rungs and up to four seeds."""
    path = folder / "sweep.yaml"
    space = {"optimizer.lr": {"kind": "grid", "values": [1e-6, 3e-3, 3.1e-3]}}
    race = {"kind": "race", "grace": 100, "reduction": 2}
    fixed = {
        "training.steps": 400,
        "evaluation.every": 50,
        "checkpoint.every": 20,
        "resources.max_failures": 20,
    }
    sweep = small_sweep(
        space=space, scheduler=race, seeds={"min": 3, "max": 4}, fixed=fixed, concurrent=2
    )
    path.write_text(dump_yaml(sweep))
    return path


def progress(home):
    """Bytes of all journals: what has been done since is seen by their growth."""
    folder = home / "train"
    return sum(path.stat().st_size for path in folder.glob("*/journal.jsonl"))


def victims(process, kind):
    launcher = psutil.Process(process.pid)
    if kind == "launcher":
        return [launcher]
    if kind == "worker":
        return worker_processes(launcher)[:1]
    return [each for each in launcher.children(recursive=True) if each.name() == "raylet"]


def result_of(said):
    facts = ("number", "values", "status", "step", "metrics")
    return [[trial[name] for name in facts] for trial in said["trials"]], said["verdict"]


def test_a_race_killed_ten_times_has_the_same_survivors_and_intervals(tmp_path):
    path, home = written(tmp_path), tmp_path / "home"
    process, killed = start_process("tune", path, "--json", home=home), 0
    for kind in KILLS:
        before = progress(home)

        def may_be_killed(process=process, before=before, kind=kind):
            return process.poll() is not None or (
                progress(home) > before + 4000 and bool(victims(process, kind))
            )

        wait_until(may_be_killed, 240, f"progress before a kill of the {kind}")
        if process.poll() is not None and process.returncode == 0:
            break  # the race was over before its last kills
        if process.poll() is None:
            for victim in victims(process, kind):
                victim.send_signal(signal.SIGKILL)
            killed += 1
        if kind != "worker":
            process.wait(120)
            wait_until(lambda: processes_of(home) == [], 120, "the end of the killed session")
            (sweep,) = [record for record in list_runs(Home(home)) if record.trials]
            process = start_process("tune", "--resume", sweep.run_id, "--json", home=home)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert killed == len(KILLS)

    unbroken = run_process("tune", path, "--json", home=tmp_path / "unbroken").ok()
    assert result_of(json.loads(out.splitlines()[-1])) == result_of(unbroken.json)
    wait_until(lambda: processes_of(home) == [], 60, "the end of all processes")
