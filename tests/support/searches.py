"""Sessions of a sweep that searches with Optuna, asked as Tune asks."""

from ray.tune.search import Searcher

from ditlab.reports.sweep_records import Trial
from ditlab.sweeps.search import OptunaTrials, make_study


class Session:
    """One session of a sweep, with its ledger."""

    def __init__(self, sweep, past=()):
        self.sweep = sweep
        self.ledger = list(past)
        self.search = OptunaTrials(sweep, list(self.ledger), self._plan)
        self._num_asked = 0

    def _plan(self, number, values, configuration, seed):
        planned = Trial(
            number, f"run-{number}", dict(values), configuration=configuration, seed=seed
        )
        self.ledger.append(planned)
        return planned

    def ask(self):
        """(Tune's id, the trial), or None when there are no more."""
        self._num_asked += 1
        tune_id = f"tune-{self._num_asked}"
        found = self.search.suggest(tune_id)
        return None if found == Searcher.FINISHED else (tune_id, Trial(**found["trial"]))

    def tell(self, tune_id, *values, step=6, status="finished"):
        result = dict(zip(self.sweep.metrics, values, strict=True))
        end = {"step": step, **result, "done": True, "status": status}
        self.search.on_trial_complete(tune_id, end)

    def rest(self, value=lambda trial: 1.0):
        """All trials that are left, each told its value."""
        found = []
        while asked := self.ask():
            found.append(asked[1])
            self.tell(asked[0], value(asked[1]))
        return found

    def trials(self):
        """All trials so far, as far as they are known."""
        return list(self.search.trials.values())

    def study(self):
        return make_study(self.sweep, self.trials())

    def states(self):
        return [trial.state for trial in self.study().trials]
