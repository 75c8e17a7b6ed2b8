"""Who goes on from whom: what is shown, what stays on the disk, and what may be deleted."""

import shutil

import pytest

from ditlab.reports.page import Table
from ditlab.runs.description import describe_run
from ditlab.runs.launch import recorded_checkpoints
from ditlab.runs.lineage import CHANGED_TAG, change_tags, lineage, lineage_lines, values_text
from ditlab.runs.page import spec_changes
from ditlab.spec.files import encode_recorded, load_recorded_experiment
from ditlab.tracking.records import create_run, find_run, list_runs, read_record, update_record
from ditlab_addons.compare.comparison import Comparison
from ditlab_addons.compare.functions import open_groups, summarise
from ditlab_addons.compare.page import summary_text
from ditlab_addons.housekeeping.removal import plan_removal, remove_runs
from support.command import run_inside
from support.damage import refused
from support.journaled import family_spec


def test_a_parent_of_forks_is_shown_as_a_tree_kept_and_not_deleted(home, family):
    base, middle, last, other = family.values()
    assert lineage_lines(describe_run(home, find_run(home, "middle")).lineage, middle) == [
        f"{base} (base, finished, step 6)",
        f"└─ from step 3: {middle} (middle, finished, step 6) <- this run",
        f"   └─ from step 6: {last} (last, finished, step 7)",
    ]
    said = run_inside("runs", "show", "base", "--json", home=home.root).ok()
    assert f"├─ from step 3: {middle} (middle" in said.err
    forks = [(fork["run_id"], fork["start_step"]) for fork in said.json["lineage"]["forks"]]
    assert forks == [(middle, 3), (other, 6)]
    shown = run_inside("runs", "show", last, "--json", home=home.root)
    assert shown.json["start"] == f"{middle}@6"

    store = recorded_checkpoints(home.run(base))
    assert store.prune(1, 6) == [] and store.steps() == [3, 6]
    both = rf"{middle} \(middle, from step 3\), {other} \(other, from step 6\)"
    with refused(
        f"^run {base} is the parent of {both}, and forks need their parent's checkpoints;"
    ):
        plan_removal(["base"])
    said = run_inside("runs", "rm", "middle", "--yes", home=home.root)
    said.refused(f"run {middle} is the parent of {last} (last, from step 6), and")
    assert home.run(middle).path.is_dir()
    assert remove_runs("last", "middle") == [last, middle]
    assert store.prune(1, 6) == [3]  # nobody needs it any more
    plan = plan_removal(["base", "other"])
    late = create_run(home, "late", family="dit", spec_hash="", start=f"{base}@6")
    with refused(rf"run {base} is the parent of {late.run_id} \(late, from step 6\)"):
        plan.remove()
    assert remove_runs("late", "base", "other") and list_runs(home) == []


def test_a_fork_whose_record_is_damaged_still_needs_its_parent(home, family):
    (home.run(family["other"]).record).write_text("{")
    remove_runs("last", "middle")
    with refused(rf"run {family['base']} is needed by run {family['other']}, which names it"):
        plan_removal(["base"])


def test_a_comparison_and_a_page_say_what_a_fork_changed(home, family):
    runs = [
        summarise(each.runs[0]) for each in open_groups(["base", "middle", "last"], home, print)
    ]
    comparison = Comparison(runs, 0)
    text = summary_text(comparison)
    assert text.startswith(
        "middle goes on from base at step 3. last goes on from middle at step 6. "
    )
    apart = Comparison([runs[0], runs[2]], 0)
    assert f"last goes on from run {family['middle']} at step 6." in summary_text(apart)
    assert runs[2].as_dict()["forked_from"] == f"{family['middle']}@6"

    folder, notes = home.run(family["middle"]), []
    changes = spec_changes(home, read_record(folder), load_recorded_experiment(folder.spec), notes)
    about = f"Differences against its parent, run {family['base']}, from whose step 3 it goes on."
    assert isinstance(changes[0], Table) and changes[0].caption == about
    assert changes[0].rows == [["optimizer.lr", "0.0003", "0.001"]] and not notes


def test_a_running_parent_keeps_what_a_fork_needs(home, parent, run):
    """Beside the `checkpoint.keep` newest ones."""
    run(f"{parent}@3", training__steps=4)
    run(None, parent, name="base", training__steps=9, checkpoint={"every": 1, "keep": 1})
    assert recorded_checkpoints(home.run(parent)).steps() == [3, 9]


def test_a_fork_outlives_a_parent_that_was_deleted_by_hand(home, parent, run):
    fork = run(f"{parent}@3", name="orphan", training__steps=4)
    shutil.rmtree(home.run(parent).path)
    start = {"run": parent, "step": 3}
    again = run(None, fork.run_id, name="orphan", training__steps=5, start=start)
    assert again.status == "finished"
    tree = lineage(list_runs(home), fork.run_id)
    assert lineage_lines(tree, fork.run_id)[0] == f"{parent} (gone)"
    assert remove_runs(fork.run_id) == [fork.run_id]


def test_a_circle_of_records_is_shown_and_ends(home, parent):
    one = create_run(home, "one", family="dit", spec_hash="", start=f"{parent}@3")
    update_record(home.run(parent), start=f"{one.run_id}@1")
    for begin in (parent, one.run_id):
        lines = lineage_lines(lineage(list_runs(home), begin), begin)
        assert {line.split(": ")[-1].split(" ")[0] for line in lines} == {parent, one.run_id}
        assert len(lines) == 2


SPEC = family_spec("digits/dit.yaml").to_dict()
FASTER = SPEC["optimizer"] | {"lr": 0.5}


@pytest.fixture
def started(home):
    """`started(name, **changes)`: (folder, tag with what differs) of a new run of digits."""

    def begin(name, family="dit", **changes):
        run = create_run(home, name, family=family, spec_hash="", total_steps=1)
        now = {**SPEC, **changes, "name": name, "model": {**SPEC["model"], "family": family}}
        run.spec.write_bytes(encode_recorded(now))
        return run, change_tags(home, run.run_id, name, now).get(CHANGED_TAG)

    shutil.rmtree(home.runs)
    return begin


def test_a_new_run_says_what_differs_from_the_one_before_of_its_name(home, started):
    def tag(**changes):
        return started("a", **changes)[1].rpartition("; since ")[0]

    assert started("a")[1] is None
    assert tag(tracking={**SPEC["tracking"], "every": 7}) == "nothing"
    assert tag(optimizer=FASTER) == "lr=0.5 (was 0.001)"
    schedule = {"kind": "constant", "warmup": 7, "warmup_epochs": 0.0}
    text = tag(optimizer=FASTER, schedule=schedule)
    assert text == "schedule=constant (was warmup_cosine), warmup=7 (was 50), final=none (was 0.05)"
    sweep = create_run(home, "a", family="dit", spec_hash="", trials=2, total_steps=1)
    trial = create_run(home, "a", family="dit", spec_hash="", parent=sweep.run_id, trial=0)
    last, _ = started("a")
    # neither a sweep nor its trials are the run before
    assert last.path.exists() and trial.path.exists()
    last.spec.write_text("{")
    assert started("a")[1] is None, "a spec that cannot be read is compared with nothing"
    many = {f"x{number}": number for number in range(20)}
    assert tag(data=many).count("(was none)") == 12 and tag().endswith(" more")


def test_a_run_of_a_new_name_says_what_differs_from_the_newest_of_its_experiment_and_family(
    started,
):
    first, alone = started("base")
    assert alone is None
    started("elsewhere", tracking={**SPEC["tracking"], "experiment": "other"})
    started("unet", family="unet")
    since = f"lr=0.5 (was 0.001); since {first.run_id}"
    assert started("faster", optimizer=FASTER)[1] == f"{since} (base)"
    assert started("base", optimizer=FASTER)[1] == since


def test_a_trial_is_called_by_its_values():
    values = {
        "optimizer.lr": 0.0012,
        "objective.time.kind": "logit_normal",
        "training.ema.decay": 0.999,
    }
    assert values_text(values) == "lr=0.0012, time=logit_normal, decay=0.999"
    values = {"objective.time": {"kind": "uniform"}, "batch.size": 8, "model.size": 4}
    assert values_text(values) == "time=uniform, batch.size=8, model.size=4"
