"""Search with Optuna (Akiba et al. 2019, arXiv:1907.10902): proposals of Tune's next trials."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from ditlab.errors import UserError
from ditlab.spec.sweep.axes import Axis, Choice, Grid, Integer, LogUniform, same
from ditlab.spec.sweep.space import draw_values, experiment_for
from ditlab.spec.sweep.spec import OptunaSearch, Sweep
from ditlab.sweeps.trials import PastTrial, PlannedTrial

MAX_PROPOSALS = 100  # in a row that make no valid experiment


class OptunaTrials(Searcher):
    """Tune's searcher on an Optuna study, which is refilled from the ledger when a sweep is resumed.

    Ray's own OptunaSearch cannot be refilled: it takes no evaluated points of a space with conditions.
    """

    def __init__(
        self, sweep: Sweep, past: Sequence[PastTrial], plan: Callable[[int, Mapping[str, Any]], PlannedTrial]
    ) -> None:
        """`plan` writes a new trial, by number and values, to the ledger."""
        super().__init__(metric=None, mode=None)
        self._sweep, self._plan = sweep, plan
        self._study = make_study(sweep, past)
        self._unfinished = [one.trial for one in past if not one.has_ended]
        used = {one.trial.number for one in past}
        self._free_numbers = [number for number in range(sweep.trials or 0) if number not in used]
        self._proposals: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Configure the next trial: first unfinished ones of an earlier session, then Optuna's proposals."""
        if self._unfinished:
            trial = self._unfinished.pop(0)
            self._study.enqueue_trial(_parameters(self._sweep, trial.values))
            proposal = self._study.ask()
            suggest_values(self._sweep, proposal)
        else:
            found = self._propose() if self._free_numbers else None
            if found is None:
                return Searcher.FINISHED
            proposal, values = found
            trial = self._plan(self._free_numbers.pop(0), values)
        self._proposals[trial_id] = proposal
        return {"trial": {"number": trial.number, "run_id": trial.run_id, "values": trial.values}}

    def _propose(self) -> tuple[Any, dict[str, Any]] | None:
        """Return Optuna's trial and values that make a valid experiment; None where Optuna finds none.

        Invalid values are reported to Optuna as pruned: it would propose failed ones again.
        """
        from optuna.trial import TrialState

        for _ in range(MAX_PROPOSALS):
            proposal = self._study.ask()
            values = suggest_values(self._sweep, proposal)
            try:
                experiment_for(self._sweep, values)
            except UserError:
                self._study.tell(proposal, state=TrialState.PRUNED)
                continue
            return proposal, values
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        proposal = self._proposals.pop(trial_id, None)
        if proposal is None:
            return
        last = result or {}
        values = [float(last.get(name, math.nan)) for name in self._sweep.metrics]
        status = "failed" if error else last.get("status", "failed")
        if status != "interrupted":  # it is resumed in the next session
            _report(self._study, proposal, status, int(last.get("step", 0)), values)

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


def make_study(sweep: Sweep, past: Sequence[PastTrial]) -> Any:
    """Make a study that holds every trial that has ended."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = sweep.search
    assert isinstance(search, OptunaSearch)
    # Another seed than that of the earlier sessions, whose trials would be proposed again.
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
            proposal = study.ask()
            suggest_values(sweep, proposal)
            _report(study, proposal, one.status, one.step, one.values)
    return study


def suggest_values(sweep: Sweep, proposal: Any) -> dict[str, Any]:
    """Let an Optuna trial suggest a value for each axis. Choices are suggested by index, as they may be mappings."""

    def draw(path: str, axis: Axis) -> Any:
        if isinstance(axis, Choice | Grid):
            return axis.values[proposal.suggest_categorical(path, list(range(len(axis.values))))]
        if isinstance(axis, Integer):
            return proposal.suggest_int(path, axis.low, axis.high, step=axis.step)
        return proposal.suggest_float(path, axis.low, axis.high, log=isinstance(axis, LogUniform))

    return draw_values(sweep.space, draw)


def _parameters(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a trial's values to Optuna's parameters."""
    found = {}
    for path, value in values.items():
        axis = sweep.space[path]
        found[path] = index_of(axis, value) if isinstance(axis, Choice | Grid) else value
    return found


def index_of(axis: Choice | Grid, value: Any) -> int:
    """Return the index of a value among an axis' values."""
    return next(index for index, known in enumerate(axis.values) if same(known, value))


def _report(study: Any, proposal: Any, status: str, step: int, values: Sequence[float]) -> None:
    """Report a trial's end to Optuna. A stopped one counts as pruned at its step, if there is one metric."""
    from optuna.trial import TrialState

    if status == "failed" or not values or not all(math.isfinite(value) for value in values):
        study.tell(proposal, state=TrialState.FAIL)
    elif status == "stopped" and len(values) == 1:
        proposal.report(values[0], step)
        study.tell(proposal, state=TrialState.PRUNED)
    else:
        study.tell(proposal, list(values))
