"""Reporter of a run's first worker: metrics, pictures and results go to tracking, progress to the
launcher.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ditlab.data.images.captions import LABEL
from ditlab.data.splits import classes_with_samples
from ditlab.data.text.tokenizer import copy_tokenizer
from ditlab.encoders.checkpoint import folder_digests
from ditlab.errors import RunFailed, Unreachable, UserError, disk_remedy, first_line
from ditlab.numerics import NUMERICS_VERSION
from ditlab.progress import ignore
from ditlab.receipts.records import STOP_VERB
from ditlab.receipts.writer import ReceiptWriter
from ditlab.reports.formatting import shorten
from ditlab.runs.budget import device_kind, num_devices
from ditlab.runs.launch import Launch
from ditlab.runs.lineage import CHANGED_TAG
from ditlab.runs.requests import RequestAnswer, open_requests
from ditlab.runs.sample_files import samples_path, save_grid, save_samples
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.tracking.environment import environment
from ditlab.tracking.history import (
    DEVICES_TAG,
    MAIN_TAG,
    NAME_TAG,
    PROOF_TAG,
    Series,
    metric_history,
)
from ditlab.tracking.journal import RESULT_PREFIXES
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.names import SPEC_HASH, flatten
from ditlab.tracking.records import update_record
from ditlab.tracking.review import (
    STATUS_TAG,
    end_run,
    log_model,
    log_overview,
    renew_note,
)
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker
from ditlab.training.evaluation import save_by_sample
from ditlab.training.export import export_weights
from ditlab.training.inbox import Inbox, Request
from ditlab.training.metrics import metric_names
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import RecordedRun, Reporter, Requests, RunOutcome, TrainingProgress
from ditlab.training.stepping import Stepper
from ditlab_models.figures import Figure


def max_nodes(experiment: Experiment, nodes: Sequence[str]) -> int:
    """Largest number of nodes that may train a run, even after it lost some: system metrics are
    named by it.
    """
    workers = experiment.resources.workers
    if isinstance(workers, int) or not nodes:
        return len(nodes)
    return max(len(nodes), workers.max)


_OF_A_TRIAL = (
    "the run is a trial, and its sweep decides on its checkpoints and its end; ask for sample "
    "or evaluate."
)
LOOK_INTERVAL = 0.5
"""Least seconds between two looks for requests."""
ASKED_TAG = "ditlab.asked"
"""Tag with the last request that was answered."""
_LONGEST_VALUES = 120
"""Characters of a trial's values, with which its name in MLflow begins."""


def held_devices(experiment: Experiment, workers: int, threads: int) -> str:
    """Devices of an attempt of so many workers, as `DEVICES_TAG` names them: GPUs, or a core for
    each thread.
    """
    held = f"{num_devices(experiment, workers, threads):g} {device_kind(experiment)}"
    price = experiment.tracking.price
    if price is None:
        return held
    return f"{held} at {price:g}"


class JournalRecord(RecordedRun):
    """View of the journal that a tracker writes."""

    def __init__(self, tracker: RunTracker) -> None:
        self._tracker = tracker

    def tags(self) -> Mapping[str, str]:
        return self._tracker.journal.facts.tags

    def history(self, metric: str) -> list[tuple[int, float]]:
        series = metric_history(self._tracker.folder).get(metric, Series())
        return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


class TrackedRequests(Requests):
    """Requests to the first worker's run: what they make is logged, and each is answered in the
    run's folder.
    """

    def __init__(
        self,
        tracker: RunTracker,
        warn: Callable[[str], None],
        refused: Mapping[str, str],
        log_metrics: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        """`refused`: a sentence for each verb that this run refuses.

        `log_metrics` receives step and metrics of an evaluation that was asked for.
        """
        self._tracker = tracker
        self._warn = warn
        self._refused = refused
        self._log_metrics = log_metrics
        self._next_look = 0.0
        self._open: list[Request] = []
        self._seen: set[Request] = set()
        """Requests that this process has begun or refused."""
        self._begun: dict[int, RequestAnswer] = {}
        """Answers that are not complete, by the step after which their requests were begun."""

    def next(self) -> Request | None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_INTERVAL
            self._look()
        return next((request for request in self._open if request not in self._seen), None)

    def begin(self, request: Request, step: int) -> None:
        self._seen.add(request)
        self._begun[step] = RequestAnswer(*request, step=step)

    def sampled(self, step: int, figure: Figure) -> None:
        try:
            picture, text = save_grid(figure, self._tracker.folder.media / f"asked-{step:08d}.png")
        except OSError as error:
            sentence = (
                f"the samples asked for at step {step} cannot be stored ({error.strerror}); "
                f"{disk_remedy(error)}."
            )
            raise UserError(sentence) from None  # the answer says so
        self._tracker.log_image("asked-samples", step, picture)
        if text:
            self._tracker.log_artifact(text, "samples")
        self._begun[step].files = [str(file) for file in (picture, text) if file]

    def done(self, step: int, metrics: Mapping[str, float], problem: str = "") -> None:
        if metrics:
            self._log_metrics(step, metrics)
        answer = self._begun[step]
        answer.metrics = {
            name: value if math.isfinite(value) else None for name, value in metrics.items()
        }
        if answer.verb not in ("checkpoint", STOP_VERB):
            self._finish(step, problem)

    def saved(self, step: int, location: str, problem: str = "") -> None:
        if step in self._begun:
            self._begun[step].checkpoint = location
            self._finish(step, problem)

    def fail(self, reason: str) -> None:
        """Answer the requests that were begun: the run has failed, for a `reason`."""
        for step in [*self._begun]:
            self._finish(step, reason)

    def close(self, reason: str) -> None:
        """Answer all begun and open requests: the run does not go on, for a `reason`."""
        self.fail(reason)
        self._look()
        while request := self.next():
            self._refuse(request, reason)

    def _look(self) -> None:
        """Read the folder, and refuse the requests whose verbs this run never does."""
        self._open = open_requests(self._tracker.folder)
        for request in self._open:
            if request.verb in self._refused and request not in self._seen:
                self._refuse(request, self._refused[request.verb])

    def _refuse(self, request: Request, why: str) -> None:
        self._seen.add(request)
        self._answer(RequestAnswer(*request), why)

    def _finish(self, step: int, problem: str) -> None:
        self._answer(self._begun.pop(step), problem)

    def _answer(self, answer: RequestAnswer, problem: str) -> None:
        if problem:
            answer.status = "not done"
            answer.message = hide(problem)
        inbox = Inbox(self._tracker.folder.requests)
        try:
            inbox.answer(Request(answer.number, answer.verb), answer)
        except OSError as error:  # it must not cost a step
            self._warn(f"{inbox.folder} cannot be written ({first_line(error)}); training goes on.")
        about = f"request {answer.number}: {answer.verb}, {answer.status} at step {answer.step}"
        self._tracker.set_tags({ASKED_TAG: about})


class TrackedReporter(Reporter):
    """Reporter of the first worker. Use as a context manager: its exit waits a bounded time for
    tracking.
    """

    def __init__(
        self,
        launch: Launch,
        on_progress: Callable[[TrainingProgress], None],
        on_evaluated: Callable[[int, Mapping[str, float]], bool] | None = None,
        worker_nodes: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        """Open the tracked run; `rest` are arguments of `Reporter`.

        `on_evaluated` receives (step, metrics) of an evaluation, and returns True while training
        has to wait. `worker_nodes` are the names of the workers' nodes in order of rank; none for
        one process without Ray.
        """
        super().__init__(**rest)
        self._launch = launch
        self._on_evaluated = on_evaluated
        self.worker_nodes = worker_nodes
        self._nodes = list(dict.fromkeys(worker_nodes))
        self._folder = launch.folder
        self._finished = False
        self._on_progress = on_progress
        experiment = launch.experiment
        tracking = experiment.tracking
        self._tracker = RunTracker(
            self._folder,
            tracking.uri,
            launch.home,
            warn=self.warn,
            budget=tracking.budget,
            is_held=True,
        )
        self.recorded = JournalRecord(self._tracker)
        self._receipts = self.receipts = ReceiptWriter(self._folder, self.warn)
        refused = {}
        log_metrics: Callable[[int, Mapping[str, float]], None] = self.metrics
        if launch.trial_channel:
            refused = {"checkpoint": _OF_A_TRIAL, STOP_VERB: _OF_A_TRIAL}
        # a sweep ranks by its own evaluations alone, and an evaluator's points of an earlier step
        # may still come
        if launch.trial_channel or experiment.evaluation.mode == "async":
            log_metrics = ignore
        self.requests: TrackedRequests = TrackedRequests(
            self._tracker, self.warn, refused, log_metrics
        )

    def __enter__(self) -> "TrackedReporter":
        launch = self._launch
        tracker = self._tracker
        experiment = launch.experiment
        parameters = self._parameters()
        tags = self._start_tags()
        title = experiment.name
        values = tags.get(CHANGED_TAG)
        if PARENT_TAG in tags and values:
            title = f"{shorten(values, _LONGEST_VALUES)} ({title})"
            # it took over a checkpoint, and trains with other values from here on
            if launch.before:
                tags[NAME_TAG] = title
        before = {}
        if launch.before:
            before = flatten(launch.before.to_dict())
        self._changes = tracker.resume_changes(parameters, before)
        tracker.start(
            title, experiment.tracking.experiment, experiment.model.family, parameters, tags
        )
        if not launch.resumed:
            self._log_inputs()
        if PROOF_TAG in launch.tags:
            tracker.log_artifact(self._folder.proof)
            tracker.log_artifact(self._folder.proof_table)
        self._renew_note()
        if experiment.tracking.system_metrics:
            tracker.watch_system(num_nodes=max_nodes(experiment, self._nodes))
        return self

    def _parameters(self) -> dict[str, str]:
        """The flat spec, its hash, and the numbers of the network's parameters."""
        experiment = self._launch.experiment
        counts = self._launch.model.counts
        numbers = {**counts.components, "total": counts.total, "trainable": counts.trainable}
        if counts.frozen:
            numbers["frozen"] = counts.frozen
        parameters = flatten(experiment.to_dict())
        parameters |= {f"parameters.{name}": str(number) for name, number in numbers.items()}
        parameters[SPEC_HASH] = experiment.content_hash()
        return parameters

    def _start_tags(self) -> dict[str, str]:
        """Tags of the launch, and those that this attempt alone knows."""
        launch = self._launch
        experiment = launch.experiment
        workers = max(1, len(self.worker_nodes))
        tags = {
            **launch.tags,
            "ditlab.workers": str(workers),
            DEVICES_TAG: held_devices(experiment, workers, torch.get_num_threads()),
            "ditlab.numerics": str(NUMERICS_VERSION),
            "ditlab.threads": str(torch.get_num_threads()),  # on which the order of sums depends
            STATUS_TAG: "running",
        }
        if self._nodes:
            tags["ditlab.nodes"] = ", ".join(self._nodes)
        names = metric_names(experiment, launch.data, launch.model.objective)
        main = next((name for name in names if name.startswith("eval/")), None)
        if main:
            tags[MAIN_TAG] = main
        tags["ditlab.data"] = f"{launch.data.name} {launch.data.fingerprint[:8]}"
        return tags

    def _log_inputs(self) -> None:
        """Log what a new run begins from: spec, software, parameters by component, data."""
        launch = self._launch
        tracker = self._tracker
        counts = launch.model.counts
        table = {**counts.components, "total": counts.total}
        copy_tokenizer(launch.data.train.store, self._folder.path)
        tracker.log_artifact(self._folder.spec)
        tracker.log_text(environment(), "environment.txt")
        tracker.log_table(
            {"component": [*table], "parameters": [*table.values()]}, "parameters.json"
        )
        plan = launch.plan
        data = launch.data
        sizes = {"train": plan.train_samples, "held_out": plan.held_out_samples}
        if data.mixture:
            sizes |= {
                f"train_of_{name}": len(part.train) for name, part in data.mixture.parts.items()
            }
        else:
            sizes["left_out_of_each_epoch"] = plan.left_out_samples
        # a value without content is not recorded
        optional = {
            "classes": data.classes,
            "encoders": folder_digests(launch.experiment.encoders),
            "weights": dict(launch.weights),
            "sampled": classes_with_samples(data.train.columns),
        }
        tracker.journal.append(
            "dataset",
            name=data.name,
            fingerprint=data.fingerprint,
            source=launch.experiment.data.kind,
            **{name: value for name, value in optional.items() if value},
            counts=sizes,
            context="training",
        )

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        """Log what a resume changes, once it is known how many steps are done."""
        changes = self._changes
        self._changes = {}
        if changes:
            step = stepper.state.step
            self._tracker.log_resume(step, changes, self._launch.rate_change(step))
            self._tracker.log_artifact(self._folder.spec)
            self._renew_note()

    def before_checkpoint(self) -> None:
        self._receipts.sync()
        self._tracker.journal.sync()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # others are tried again
        if isinstance(error, UserError | RunFailed) and not isinstance(error, Unreachable):
            self.requests.fail(f"the run has failed meanwhile: {error}")
        self._receipts.close()
        # A failed run may be tried again at once; where it is not, the launcher records how it
        # ended.
        left = self._tracker.close(CATCH_UP_TIMEOUT if self._finished else 0.0)
        if left and self._finished:
            self.warn(
                f"{left} records have not reached MLflow; `ditlab runs sync "
                f"{self._folder.run_id}` sends them."
            )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step; after an evaluation, renew what MLflow shows of the run
        first.
        """
        self._tracker.journal.log_metrics(step, values)
        if step:
            self._tracker.begin_upload()
        if any(name.startswith(RESULT_PREFIXES) for name in values):
            self._renew_note(step)

    def _renew_note(self, step: int = 0) -> None:
        log_overview(self._tracker, step)
        renew_note(self._tracker)

    def progress(self, progress: TrainingProgress) -> None:
        self._on_progress(progress)

    def tags(self, tags: Mapping[str, str]) -> None:
        self._tracker.set_tags(tags)

    def samples(self, step: int, figure: Figure) -> None:
        try:
            save_samples(self._folder, step, figure)
        except OSError as error:
            self.warn(
                f"the samples of step {step} cannot be stored ({error.strerror}); training goes on."
            )
            return
        self.log_samples(step)

    def log_samples(self, step: int) -> None:
        picture = samples_path(self._folder, step)
        text = picture.with_suffix(".txt")
        self._tracker.log_image("samples", step, picture)
        if text.exists():
            self._tracker.log_artifact(text, "samples")
        renew_note(self._tracker)

    def held_out(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        try:
            save_by_sample(self._folder, step, values)
        except OSError as error:
            reason = f"cannot be stored ({error.strerror})"
            self.warn(
                f"values of step {step} by held-out sample {reason}, so `compare` knows no "
                "noise there."
            )

    def saved(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        self.requests.saved(step, location)
        renew_note(self._tracker)
        try:
            update_record(self._folder, step=step)
        except (OSError, UserError) as error:
            self.warn(
                f"{self._folder.record} cannot be written ({first_line(error)}); training goes on."
            )

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        return self._on_evaluated is not None and self._on_evaluated(step, metrics)

    def finish(self, outcome: RunOutcome) -> None:
        """Log the run's end; a finished run leaves its weights as an artifact."""
        # imports Jinja and PIL: not before the first step
        from ditlab.runs.page import log_run_report

        self._finished = True
        self.requests.close(
            f"the run has ended meanwhile ({outcome.status}) at step {outcome.step:,}."
        )
        if outcome.status == "finished" and outcome.checkpoint:
            try:
                exported = self._folder.media / "export"
                export_weights(
                    outcome.checkpoint,
                    exported,
                    tokenizer=self._folder.tokenizer,
                    classes=self._launch.data.classes.get(LABEL, ()),
                )
                log_model(self._tracker, outcome.step, exported)
            except UserError as error:
                self.warn(
                    f"{error} The checkpoint holds the weights: `ditlab export` writes them later."
                )
        log_run_report(self._tracker, self._launch, outcome.status, self.warn)
        end_run(self._tracker, outcome.status)
