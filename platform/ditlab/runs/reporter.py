"""A run's reporter: metrics, pictures and results go to tracking; progress and stop signals to whoever launched it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from denoisers.parameter_counts import count_parameters
from denoisers.figures import Figure
from ditlab.data.splits import DataSplits
from ditlab.data.text.tokenizer import attach
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.reports.rendering.render import save
from ditlab.reports.text_file import save_text
from ditlab.runs.request import RunRequest
from ditlab.spec.experiment import Experiment
from ditlab.tracking.environment import environment
from ditlab.tracking.parameters import flatten
from ditlab.tracking.records import update_record
from ditlab.tracking.tracker import CATCH_UP, RunTracker
from ditlab.training.export import export_weights
from ditlab.training.plan import plan_run
from ditlab.training.reporting import RunOutcome, TrainingProgress, SilentReporter


def most_nodes(experiment: Experiment, nodes: Sequence[str]) -> int:
    """Nodes that may carry a run: an elastic one that is left with one of them names its metrics as before."""
    workers = experiment.resources.workers
    return len(nodes) if isinstance(workers, int) or not nodes else max(len(nodes), workers.max)


class TrackedReporter(SilentReporter):
    """The first worker's reporter. Use as a context manager: its end waits a bounded time for tracking."""

    def __init__(
        self,
        request: RunRequest,
        data: DataSplits,
        progress: Callable[[TrainingProgress], None],
        on_evaluated: Callable[[int, Mapping[str, float]], bool] | None = None,
        num_workers: int = 1,
        nodes: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        """`nodes`: names of those that carry the run, this worker's first."""
        super().__init__(**rest)
        self._num_workers, self._on_evaluated = num_workers, on_evaluated
        self._request, self._data, self._on_progress = request, data, progress
        self._nodes = nodes
        self._folder = request.folder()
        self._finished = False
        self._experiment = request.experiment()
        tracking, home = self._experiment.tracking, Home(Path(request.home))
        self._tracker = RunTracker(self._folder, tracking.uri, home, warn=self.warn, budget=tracking.budget)

    def __enter__(self) -> "TrackedReporter":
        experiment, tracker = self._experiment, self._tracker
        counts = count_parameters(experiment.model, experiment.objective)
        parameters = flatten(experiment.to_dict())
        parameters |= {f"parameters.{name}": str(number) for name, number in counts.components.items()}
        parameters |= {"parameters.total": str(counts.total), "parameters.trainable": str(counts.trainable)}
        parameters["spec_hash"] = experiment.content_hash()
        tags = {**self._request.tags, "ditlab.workers": str(self._num_workers)}
        if self._nodes:
            tags["ditlab.nodes"] = ", ".join(self._nodes)
        tracker.start(experiment.name, experiment.tracking.experiment, experiment.model.family, parameters, tags)
        if not self._request.resumed:
            attach(self._data.train.store, self._folder.path)
            tracker.log_artifact(self._folder.spec)
            tracker.log_text(environment(), "environment.txt")
            rows = [*counts.components.items(), ("total", counts.total)]
            names, numbers = zip(*rows, strict=True)
            tracker.log_table({"component": names, "parameters": numbers}, "parameters.json")
            plan = plan_run(experiment, self._data)
            sizes = {"train": plan.train_samples, "held_out": plan.held_out_samples}
            sizes["left_out_of_each_epoch"] = plan.left_out_samples
            tracker.log_dataset(self._data.name, self._data.fingerprint, experiment.data.kind, sizes)
        if experiment.tracking.system_metrics:
            tracker.watch_system(num_nodes=most_nodes(experiment, self._nodes))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # What failed may be tried again at once; where it is not, the launcher writes down how the run ended.
        left = self._tracker.close(CATCH_UP if self._finished else 0.0)
        if left and self._finished:
            self.warn(f"{left} records have not reached MLflow; `ditlab runs sync {self._folder.run_id}` sends them.")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._tracker.log_metrics(step, dict(values))

    def progress(self, progress: TrainingProgress) -> None:
        self._on_progress(progress)

    def samples(self, step: int, figure: Figure) -> None:
        try:
            picture = save(figure, self._folder.media / f"samples-{step:08d}.png")
            text = save_text(figure, picture.with_suffix(".txt"))
        except OSError as error:
            self.warn(f"the samples of step {step} cannot be stored ({error.strerror}); training goes on.")
            return
        self._tracker.log_image("samples", step, picture)
        if text:
            self._tracker.log_artifact(text, "samples")

    def checkpoint(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        try:
            update_record(self._folder, step=step)
        except (OSError, UserError) as error:
            reason = getattr(error, "strerror", None) or error
            self.warn(f"{self._folder.record} cannot be written ({reason}); training goes on.")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        return self._on_evaluated is not None and self._on_evaluated(step, metrics)

    def before_checkpoint(self) -> None:
        self._tracker.flush()

    def tags(self, values: Mapping[str, str]) -> None:
        self._tracker.set_tags(values)

    def finish(self, outcome: RunOutcome) -> None:
        """Writes down how the run ended; a finished one leaves its weights as an artifact."""
        self._finished = True
        if outcome.status == "finished" and outcome.checkpoint:
            try:
                for file in export_weights(
                    outcome.checkpoint, self._folder.media / "export", tokenizer=self._folder.tokenizer
                ):
                    self._tracker.log_artifact(file, "export")
            except UserError as error:
                self.warn(f"{error} The checkpoint holds the weights: `ditlab export` writes them later.")
        self._tracker.end(outcome.status)
