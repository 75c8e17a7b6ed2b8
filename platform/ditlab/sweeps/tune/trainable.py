"""Class that Ray Tune runs: it leads one trial after another, in a process with warm workers."""

from pathlib import Path
from typing import Any

from ray import tune

from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.workers.group import WorkerPool
from ditlab.home import Home
from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.tune.trial import TrialContext, TrialThread, trial_from_config


def make_trainable(home_root: str, sweep_id: str, share: CpuShare, keep_workers: bool) -> type[tune.Trainable]:
    """Make Tune's class for the trials of one sweep."""

    class Trainable(tune.Trainable):
        """Leads the workers of one trial after another. Takes no resources itself: the workers do."""

        def setup(self, config: dict[str, Any]) -> None:
            home = Home(Path(home_root))
            folder = SweepFolder(home.run(sweep_id))
            self._pool = WorkerPool(folder.folder.path / "ray", keep_workers)
            self._context = TrialContext(home, sweep_id, folder.load_sweep(), share, self._pool)
            self._trial = TrialThread(self._context, *trial_from_config(config))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._trial.end()
            self._trial = TrialThread(self._context, *trial_from_config(new_config))
            return True

        def step(self) -> dict[str, Any]:
            return self._trial.next_result()

        def cleanup(self) -> None:
            self._trial.end()
            self._pool.shut_down()

    return Trainable
