"""Where Tune's next trial comes from: the plan, or Optuna (Akiba et al. 2019, arXiv:1907.10902)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from ditlab.errors import UserError
from ditlab.spec.sweep.axes import Axis, Choice, Grid, Integer, LogUniform, same
from ditlab.spec.sweep.space import draw_values, experiment_for
from ditlab.spec.sweep.spec import OptunaSearch, Sweep
from ditlab.sweeps.trials import PastTrial, PlannedTrial

TRIES = 100  # proposals in a row that may make no experiment


class OptunaTrials(Searcher):
    """Optuna's study, refilled from the ledger when a sweep goes on.

    Ray's own OptunaSearch cannot be: it takes no evaluated points of a space with conditions.
    """

    def __init__(
        self, sweep: Sweep, past: Sequence[PastTrial], plan: Callable[[int, Mapping[str, Any]], PlannedTrial]
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._sweep, self._plan = sweep, plan
        self._study = make_study(sweep, past)
        self._waiting = [one.trial for one in past if not one.has_ended]
        self._number = len(past)
        self._asked: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration: first those that an earlier session began, then Optuna's; then no more."""
        if self._waiting:
            trial = self._waiting.pop(0)
            self._study.enqueue_trial(_parameters(self._sweep, trial.values))
            asked = self._study.ask()
            suggest_values(self._sweep, asked)
        else:
            found = self._propose() if self._number < (self._sweep.trials or 0) else None
            if found is None:
                return Searcher.FINISHED
            asked, values = found
            trial = self._plan(self._number, values)
            self._number += 1
        self._asked[trial_id] = asked
        return {"trial": {"number": trial.number, "run_id": trial.run_id, "values": trial.values}}

    def _propose(self) -> tuple[Any, dict[str, Any]] | None:
        """Values that make an experiment, None where Optuna finds none. It is told of those that do not as pruned: what
        failed it would propose again."""
        from optuna.trial import TrialState

        for _ in range(TRIES):
            asked = self._study.ask()
            values = suggest_values(self._sweep, asked)
            try:
                experiment_for(self._sweep, values)
            except UserError:
                self._study.tell(asked, state=TrialState.PRUNED)
                continue
            return asked, values
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        asked = self._asked.pop(trial_id, None)
        if asked is None:
            return
        last = result or {}
        values = [float(last.get(name, math.nan)) for name in self._sweep.metrics]
        status = "failed" if error else last.get("status", "failed")
        if status != "interrupted":  # which goes on in the next session
            _tell(self._study, asked, status, int(last.get("step", 0)), values)

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


def make_study(sweep: Sweep, past: Sequence[PastTrial]) -> Any:
    """A study that knows every trial that has ended."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = sweep.search
    assert isinstance(search, OptunaSearch)
    # Its random numbers go on from another place than those that the earlier trials came from.
    seed = (sweep.seed + 1_000_003 * len(past)) % 2**32
    sampler: Any = (
        optuna.samplers.RandomSampler(seed=seed)
        if search.sampler == "random"
        else optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=search.startup, multivariate=False, constant_liar=True
        )
    )
    directions: Any = ["minimize" if mode == "min" else "maximize" for mode in sweep.modes]
    study = optuna.create_study(sampler=sampler, directions=directions)
    for one in past:
        if one.has_ended:
            study.enqueue_trial(_parameters(sweep, one.trial.values))
            asked = study.ask()
            suggest_values(sweep, asked)
            _tell(study, asked, one.status, one.step, one.values)
    return study


def suggest_values(sweep: Sweep, asked: Any) -> dict[str, Any]:
    """Values by axis as an Optuna trial suggests them. Choices go by their place: they may be mappings."""

    def draw(path: str, axis: Axis) -> Any:
        if isinstance(axis, Choice | Grid):
            return axis.values[asked.suggest_categorical(path, list(range(len(axis.values))))]
        if isinstance(axis, Integer):
            return asked.suggest_int(path, axis.low, axis.high, step=axis.step)
        return asked.suggest_float(path, axis.low, axis.high, log=isinstance(axis, LogUniform))

    return draw_values(sweep.space, draw)


def _parameters(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values as Optuna names them."""
    found = {}
    for path, value in values.items():
        axis = sweep.space[path]
        found[path] = place_of(axis, value) if isinstance(axis, Choice | Grid) else value
    return found


def place_of(axis: Choice | Grid, value: Any) -> int:
    return next(place for place, known in enumerate(axis.values) if same(known, value))


def _tell(study: Any, asked: Any, status: str, step: int, values: Sequence[float]) -> None:
    """What became of a trial. One that was stopped counts as pruned at its step, for one metric."""
    from optuna.trial import TrialState

    if status == "failed" or not values or not all(math.isfinite(value) for value in values):
        study.tell(asked, state=TrialState.FAIL)
    elif status == "stopped" and len(values) == 1:
        asked.report(values[0], step)
        study.tell(asked, state=TrialState.PRUNED)
    else:
        study.tell(asked, list(values))
