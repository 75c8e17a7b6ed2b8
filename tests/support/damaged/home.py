"""A small DITLAB_HOME with a file of every kind: two runs, a sweep with trials, stores, an export,
a classifier.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from ditlab.data.named_stores import StoreName
from ditlab.data.text.tokenizer import ByteTokenizer
from ditlab.home import Home, RunFolder
from ditlab.quality.classifier import SmallClassifier, TrainedClassifier, _save
from ditlab.quality.images import ImageFields
from ditlab.storage.files import stamped
from ditlab.sweeps.folder import SweepFolder, Takeover, record_takeover, trial_experiment
from ditlab.sweeps.results import best_spec, summarize_sweep
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import update_record
from ditlab_models.contract import BatchField
from support.command import run_inside
from support.datasets import bucketed
from support.sweeps import planned, started, sweep_of, trial_run
from support.trainings.averaged import keep_averages

OTHER = "0123abcd"
"""Id of a second run, which no damage of the first may touch."""
FIELDS = ImageFields(
    BatchField("image", (1, 8, 8), "float32", value_range=(-1, 1)),
    BatchField("label", (), "int64", num_classes=10),
)


@dataclass(frozen=True)
class DamagedHome:
    """Places in such a home. `first` is the run that is damaged."""

    home: Home
    first: RunFolder
    sweep: SweepFolder

    @property
    def other(self) -> RunFolder:
        """The run that stays whole."""
        return self.home.run(OTHER)

    @property
    def trial(self) -> RunFolder:
        """A trial that took over a checkpoint."""
        return self.home.run(self.sweep.planned_trials()[0].run_id)

    @property
    def checkpoint(self) -> Path:
        """Folder of the first run's newest checkpoint."""
        return max(self.first.checkpoints.iterdir())

    @property
    def snapshot(self) -> Path:
        """Folder of the first run's newest snapshot of averages."""
        return max((self.first.checkpoints / "averages").iterdir())

    @property
    def bucketed(self) -> Path:
        """A store of images of several sizes."""
        return self.home.stores / "buckets"

    @property
    def best(self) -> Path:
        """The sweep's best spec."""
        return self.sweep.report / "best.yaml"

    @property
    def picture(self) -> Path:
        """A picture of the first run's samples."""
        return min(self.first.media.glob("*.png"))

    @property
    def export(self) -> Path:
        """An export of the first run."""
        return self.home.root / "export"

    @property
    def tokenizer(self) -> Path:
        """A tokeniser's file."""
        return self.home.root / "tokenizer.json"

    @property
    def classifier(self) -> Path:
        """A small classifier, which was not trained."""
        return self.home.classifiers / "digits-1.safetensors"


def copied_home(source: Path, root: Path) -> Home:
    """Copy a home and make the copy one of its own."""
    shutil.copytree(source, root)
    run_inside("runs", "sync", home=root).ok()
    return Home(root)


def complete(root: Path, run_id: str) -> DamagedHome:
    """Add to a home with one finished run all that other commands leave."""
    home = Home(root)
    with mock.patch.dict(os.environ, {"DITLAB_HOME": str(root)}):
        first = home.run(run_id)
        run_inside("export", run_id, "--out", root / "export", home=root).ok()
        second_node = JournalWriter(first, node=1)
        second_node.log_metrics(2, {"system/cpu": 0.5, "system/memory": 1e9})
        second_node.close()
        shutil.copytree(first.path, home.run(OTHER).path)
        update_record(home.run(OTHER), name="other", status="interrupted")
        sweep = _sweep(home)
        bucketed.write(home.stores / "buckets")
        (home.stores / "pets").write_text(StoreName(store="buckets").model_dump_json())
        (root / "tokenizer.json").write_bytes(ByteTokenizer().content)
        home.classifiers.mkdir(exist_ok=True)
        network = SmallClassifier(
            FIELDS.shape, FIELDS.num_classes, torch.Generator().manual_seed(0)
        )
        found = DamagedHome(home, first, sweep)
        keep_averages(first.checkpoints)
        _save(found.classifier, TrainedClassifier(network, 0.9, 0.1, 100))
    return found


def copied(made: DamagedHome, root: Path) -> DamagedHome:
    """Copy a home; the copy's files may be damaged."""
    home = copied_home(made.home.root, root)
    return DamagedHome(
        home, home.run(made.first.run_id), SweepFolder(home.run(made.sweep.sweep_id))
    )


def _sweep(home: Home) -> SweepFolder:
    """A sweep of four trials: two ended, one interrupted, one to come."""
    one = started(sweep_of())
    for trial, status in zip(planned(one), ("finished", "stopped", "interrupted"), strict=False):
        run = trial_run(
            home,
            one.sweep,
            trial,
            status,
            {2: 0.5, 4: 0.25 + trial.number},
            parent=one.folder.sweep_id,
        )
        update_record(run, trial=trial.number)
    first = planned(one)[0]
    takeover = Takeover(2, planned(one)[1].run_id, 2, {"optimizer.lr": 0.05}, "a key")
    record_takeover(home.run(first.run_id), takeover, trial_experiment(one.sweep, first))
    one.folder.save_elapsed(12.5)
    one.folder.report.mkdir()
    (one.folder.report / "best.yaml").write_text(
        stamped(best_spec(one.sweep, summarize_sweep(one, 12.5)))
    )
    update_record(one.folder.folder, status="interrupted")
    return one.folder
