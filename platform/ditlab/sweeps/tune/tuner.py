"""Ray Tune, set up for a sweep and run in a thread of its own."""

import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray import tune

from ditlab.cluster.nodes.membership import refresh_node_count
from ditlab.cluster.workers.channel import STOPPED, KeyValueChannel
from ditlab.cluster.workers.heartbeat import CHANNEL_ERRORS
from ditlab.spec.sweep.spec import OptunaSearch
from ditlab.sweeps.folder import record_of
from ditlab.sweeps.prepare import ReadySweep
from ditlab.sweeps.takeovers import exploits
from ditlab.sweeps.trials import PastCurve
from ditlab.sweeps.tune.schedulers import make_scheduler
from ditlab.sweeps.tune.search import OptunaTrials
from ditlab.sweeps.tune.trainable import trainable

# Set before Tune reads them. Results are in each run's journal, so Tune keeps none; a trial that failed reports no
# metric; as many trials may be started at once as may run; how trials fail is told by us.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}
MAX_LOST = 3  # times that the process which leads a trial may be lost


class Tuning(threading.Thread):
    """Tune's own loop, from the first trial to the last."""

    def __init__(self, ready: ReadySweep, board: KeyValueChannel, past: Sequence[PastCurve]) -> None:
        super().__init__(name="ray-tune", daemon=True)
        assert ready.folder
        self._ready, self._past = ready, past
        self._stopper, self._board = _Stopper(self._is_idle), board
        self._path = ready.folder.folder.path / "tune"
        self.error: Exception | None = None

    def stop(self) -> None:
        """Starts no more trials, and ends when those that run have ended."""
        self._stopper.wanted.set()

    def _is_idle(self) -> bool:
        """Whether no trial is in the middle of its training, or of its last checkpoint."""
        assert self._ready.folder
        records = (record_of(self._ready.home, trial.run_id) for trial in self._ready.folder.trials())
        return not any(record and record.status == "running" for record in records)

    def run(self) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._ready.concurrent)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            if self._ready.num_remaining:
                with suppress(*CHANNEL_ERRORS):
                    refresh_node_count()  # Ray's actor for that lives where it is asked first, and ends with that node
                self._tuner().fit()
        except Exception as error:
            self.error = error
        finally:
            for left in (self._path, self._path.with_name("ray")):
                shutil.rmtree(left, ignore_errors=True)  # what counts is in the ledger and the runs

    def _tuner(self) -> tune.Tuner:
        ready, sweep = self._ready, self._ready.sweep
        assert ready.folder
        leader = trainable(str(ready.home.root), ready.folder.folder.run_id, ready.share, sweep.reuse_workers)
        config: dict[str, Any] = {
            "max_concurrent_trials": ready.concurrent,
            "reuse_actors": sweep.reuse_workers,
            "scheduler": make_scheduler(sweep, ready.total_steps, self._past, _StopWord(self._board)),
        }
        space: dict[str, Any] = {}
        if isinstance(sweep.search, OptunaSearch):
            folder, home = ready.folder, ready.home
            config["search_alg"] = OptunaTrials(sweep, ready.past, lambda *trial: folder.plan(home, *trial))
            config["num_samples"] = ready.num_remaining
        else:
            space["trial"] = tune.grid_search(self._remaining())
        return tune.Tuner(
            # The workers take the resources; Tune refuses none at all, and with a little CPU would starve the last one.
            tune.with_resources(leader, {"cpu": 0, "memory": 2**20}),
            param_space=space,
            tune_config=tune.TuneConfig(**config),
            run_config=tune.RunConfig(
                name=secrets.token_hex(4),
                storage_path=str(self._path),
                stop=self._stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_LOST),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs keep their own
                verbose=0,
            ),
        )

    def _remaining(self) -> list[dict[str, Any]]:
        """Trials that have not ended, with the values that they had last."""
        remaining = []
        for one in self._ready.past:
            if not one.has_ended:
                taken = exploits(self._ready.home.run(one.trial.run_id))
                values = taken[-1].values if taken else one.trial.values
                remaining.append({"number": one.trial.number, "run_id": one.trial.run_id, "values": values})
        return remaining


@dataclass(frozen=True)
class _StopWord:
    """Tells a trial that it shall end. Tune copies its schedulers with all that they hold."""

    board: KeyValueChannel

    def __call__(self, number: int) -> None:
        with suppress(*CHANNEL_ERRORS):  # said again at the trial's next evaluation
            self.board.put(f"stop/{number}", STOPPED)


class _Stopper(tune.Stopper):
    """Ends the sweep when that is wanted and no trial runs: they hear of it on the board, and end by themselves, while
    Tune would give their processes ten seconds."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self.wanted, self._is_idle = threading.Event(), is_idle

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.wanted.is_set() and self._is_idle()

    def __deepcopy__(self, memo: Any) -> "_Stopper":
        return self

    def __reduce__(self) -> tuple[Callable[[], bool], tuple[()]]:
        return (bool, ())  # Tune keeps its settings in a file, from which nothing is restored here
