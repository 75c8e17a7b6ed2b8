"""What Tune runs: a trial at a time, in a process that the next trial finds warm."""

from pathlib import Path
from typing import Any

from ray import tune

from ditlab.cluster.capacity import Share
from ditlab.cluster.workers.group import Crews
from ditlab.home import Home
from ditlab.sweeps.tune.trial import TrialRun, trial_of


def trainable(home: str, sweep_id: str, share: Share, keep: bool) -> type[tune.Trainable]:
    """Tune's class for the trials of one sweep."""

    class Trial(tune.Trainable):
        """Leads the workers of one trial after another. Takes no resources itself: the workers do."""

        def setup(self, config: dict[str, Any]) -> None:
            place = Home(Path(home))
            self._crews = Crews(place.run(sweep_id).path / "ray", keep)
            self._take(config)

        def _take(self, config: dict[str, Any]) -> None:
            self._run = TrialRun(Home(Path(home)), sweep_id, *trial_of(config), share, self._crews)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._run.end()
            self._take(new_config)
            return True

        def step(self) -> dict[str, Any]:
            return self._run.next_result()

        def cleanup(self) -> None:
            self._run.end()
            self._crews.dismiss()

    return Trial
