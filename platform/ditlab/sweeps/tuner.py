"""Ray Tune's main loop for a sweep, in a thread of its own, and the class that Tune runs."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune

from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.cluster.nodes import refresh_node_count
from ditlab.cluster.workers import WorkerPool
from ditlab.home import Home
from ditlab.spec.sweep import OptunaSearch
from ditlab.sweeps.folder import SweepFolder, find_record
from ditlab.sweeps.search import OptunaTrials, make_scheduler
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trial import StopTrial, TrialContext, TrialThread, trial_from_config
from ditlab.sweeps.trials import PastCurve, read_takeovers

# Set before Tune reads them. Results are in each run's journal, so Tune keeps none; a failed trial reports no metric;
# as many trials may be starting at once as may run; the session itself reports how trials fail.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}
MAX_LOST_PROCESSES = 3  # restarts of the process that leads a trial


class TunerThread(threading.Thread):
    """Runs Ray Tune from the first trial to the last."""

    def __init__(self, started: StartedSweep, channel: KeyValueChannel, past: Sequence[PastCurve]) -> None:
        super().__init__(name="ray-tune", daemon=True)
        self._sweep, self._channel, self._past = started, channel, past
        self._stopper = _IdleStopper(self._is_idle)
        self._storage = started.folder.folder.path / "tune"
        self.error: Exception | None = None

    def stop(self) -> None:
        """Start no more trials, and end once the running ones have ended."""
        self._stopper.requested.set()

    def _is_idle(self) -> bool:
        """Return True if no trial is training or saving its last checkpoint."""
        started = self._sweep
        records = (find_record(started.home, trial) for trial in started.folder.planned_trials())
        return not any(record and record.status == "running" for record in records)

    def run(self) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._sweep.prepared.concurrency.num_trials)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            if self._sweep.num_remaining:
                with suppress(*CHANNEL_ERRORS):
                    refresh_node_count()  # Ray's actor for that starts on the node that asks first, and ends with it
                self._make_tuner().fit()
        except Exception as error:
            self.error = error
        finally:
            for folder in (self._storage, self._storage.with_name("ray")):
                shutil.rmtree(folder, ignore_errors=True)  # the ledger and the runs hold all that counts

    def _make_tuner(self) -> tune.Tuner:
        started, sweep = self._sweep, self._sweep.sweep
        folder, home, concurrency = started.folder, started.home, started.prepared.concurrency
        leader = make_trainable(str(home.root), folder.sweep_id, concurrency.share, sweep.reuse_workers)
        stop_trial = StopTrial(self._channel)
        config: dict[str, Any] = {
            "max_concurrent_trials": concurrency.num_trials,
            "reuse_actors": sweep.reuse_workers,
            "scheduler": make_scheduler(sweep, started.prepared.total_steps, self._past, stop_trial),
        }
        space: dict[str, Any] = {}
        if isinstance(sweep.search, OptunaSearch):
            config["search_alg"] = OptunaTrials(sweep, started.past, lambda *trial: folder.plan_trial(home, *trial))
            config["num_samples"] = started.num_remaining
        else:
            space["trial"] = tune.grid_search(self._remaining_trials())
        return tune.Tuner(
            # The workers take the resources; Tune refuses none at all, and with a little CPU would starve the last one.
            tune.with_resources(leader, {"cpu": 0, "memory": 2**20}),
            param_space=space,
            tune_config=tune.TuneConfig(**config),
            run_config=tune.RunConfig(
                name=secrets.token_hex(4),
                storage_path=str(self._storage),
                stop=self._stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_LOST_PROCESSES),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs keep their own
                verbose=0,
            ),
        )

    def _remaining_trials(self) -> list[dict[str, Any]]:
        """Tune's configurations of the trials that have not ended, with their latest values."""
        remaining = []
        for past in self._sweep.past:
            if not past.has_ended:
                trial = past.trial
                takeovers = read_takeovers(self._sweep.home.run(trial.run_id))
                values = takeovers[-1].values if takeovers else trial.values
                remaining.append({"number": trial.number, "run_id": trial.run_id, "values": values})
        return remaining


class _IdleStopper(tune.Stopper):
    """Ends Tune on request, once no trial runs.

    Trials read the request from the channel and end by themselves; Tune would kill their processes after ten seconds.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self.requested, self._is_idle = threading.Event(), is_idle

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.requested.is_set() and self._is_idle()

    def __deepcopy__(self, memo: Any) -> _IdleStopper:
        return self

    def __reduce__(self) -> tuple[Callable[[], bool], tuple[()]]:
        return (bool, ())  # Tune keeps its settings in a file, from which nothing is restored here


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
