"""Groups of seeds: a training, its resume and its comparison."""

from itertools import chain

import mlflow
import pytest

import ditlab as api
from ditlab.home import Home
from ditlab.receipts.records import intact_rows
from ditlab.tracking.records import find_training_run
from support.damage import refused


def digests(result):
    """Digests of the samples and random numbers of each step, from a run's receipts."""
    return intact_rows((result.folder / "receipts" / "steps.bin").read_bytes())["samples"].tolist()


@pytest.mark.slow
def test_seeds_train_one_after_the_other_and_are_compared(home, spec, ditlab):
    changes = ["training.steps=4", "evaluation.every=2"]
    options = {"local": True, "seeds": 2}
    first = api.train_seeds(spec, changes, **options)
    group = Home(home).run(first.run_id)
    with refused(r"is a group of 2 seeds; name one of its runs"):
        find_training_run(Home(home), first.run_id)
    again = api.train_seeds(spec, changes, **{**options, "seeds": 3}, resume="auto")
    # the first has finished, so a new one begins
    assert again.run_id != first.run_id and len(again.results) == 3
    more = api.train_seeds(spec, changes, **{**options, "seeds": 3}, resume=first.run_id)
    assert [result.run.spec.seed for result in more.results] == [2]
    values = [result.metrics["eval/velocity"] for result in (*first.results, *more.results)]
    assert more.intervals["eval/velocity"].mean == pytest.approx(sum(values) / 3)
    # runs of equal seeds are equal
    assert values == [result.metrics["eval/velocity"] for result in again.results]
    other = api.train_seeds(spec, [*changes, "optimizer.lr=0.01", "name=other"], **options)
    larger = api.train_seeds(spec, [*changes, "batch.micro=4", "name=larger"], **options)
    ours, theirs, others = (
        [digests(each) for each in group.results] for group in (first, other, larger)
    )
    assert ours == theirs  # samples and noise are the same
    assert not {*chain(*ours)} & {*chain(*others)}

    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`ditlab.run` = '{group.run_id}'")
    assert parent.data.metrics["eval/velocity"] == pytest.approx(sum(values) / 3)
    assert parent.data.metrics["low/eval/velocity"] < parent.data.metrics["eval/velocity"]
    children = client.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert sorted(child.data.tags["ditlab.seed"] for child in children) == ["0", "1", "2"]

    found = api.compare(first.run_id, "other", grid=0, log=False)
    assert [len(run.members) for run in found.runs] == [3, 2] and "2 pairs" in found.summary
    assert ditlab("runs", "rm", "--yes", group.run_id).code == 0 and not group.path.exists()


@pytest.mark.slow
def test_mistakes_of_a_group(home, spec):
    short = ["training.steps=2", "evaluation.every=null"]
    group = api.train_seeds(spec, short, local=True, seeds=2)
    for seeds, changes, run, message in [
        (2, [*short, "optimizer.lr=0.5"], group.run_id, "as another experiment"),
        (2, short, group.results[0].run_id, "and run .* is none"),
        (1, [], None, "seeds=1 makes no group"),
        (2, ["seed=9223372036854775807"], None, "--seeds 2 counts up to seed 9223372036854775808"),
    ]:
        with refused(message):
            api.train_seeds(spec, changes, local=True, seeds=seeds, resume=run)
