"""The objects that commands print under `--json`, and their JSON schemas: `ditlab schema --result COMMAND`.

A key that is `NotRequired` is there in some cases only; NaN and infinities are null. Tests hold every object that a
command prints to its type here, with no key too many. A later version may add keys.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from ditlab.errors import UserError, nearest

Numbers = dict[str, float | None]
"""Values by name: metrics under their MLflow names."""
Device = Literal["GPU", "core"]
DeviceHours = dict[Device, float]
"""Hours of GPUs and of cores; those of several devices are added."""
Change = TypedDict("Change", {"was": Any, "is": Any})
Changes = Annotated[dict[str, Change], Field(description="Fields that `--quick` has changed, by dotted path.")]


FiguresLeft = Annotated[list[str], Field(description="Kinds of figures that are left to `ditlab figures RUN`.")]


class ErrorOutput(TypedDict):
    """Object of a command that fails, whose sentence is on standard error as well."""

    status: Literal["error"]
    kind: str
    """user_error: the input is wrong. budget: nothing was started, as a budget has too little left. interrupted: by a
    signal. storage: a disk refuses. Else the class of a run's failure: crash, diverged, lost_worker ..."""
    message: str
    """Sentences, one a line: the field or option, its value and the remedy."""
    exit_code: int


class IntervalOutput(TypedDict):
    """Mean over seeds, and the interval that holds it with this confidence; null ends with one value."""

    mean: float | None
    low: float | None
    high: float | None
    num: int
    std: float | None
    confidence: float
    num_other: int
    """Values of the second group where a difference is not one of pairs; else 0."""


class MeasurementOutput(TypedDict):
    """How a group of figures is measured."""

    digest: str
    parts: dict[str, str]
    """Digest of each part."""
    words: dict[str, str]
    """Parts in words, as far as they have any."""


class EndsOutput(TypedDict):
    """Figure with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


class TrainedOutput(TypedDict):
    """`ditlab train`: a run that has ended."""

    run_id: str
    status: Literal["finished", "interrupted", "stopped"]
    """interrupted: after a final checkpoint, and exit code 130; `--resume RUN` goes on."""
    reason: str
    """Clause on the budget that ended it; empty for another end."""
    step: int
    metrics: Numbers
    """Metrics of the last step and of the last evaluation."""
    checkpoint: str | None
    tracking_uri: str
    figures_left: NotRequired[FiguresLeft]
    quick: NotRequired[Changes]


class SeedsOutput(TypedDict):
    """`ditlab train --seeds`."""

    run_id: str
    """Id of the group."""
    status: Literal["finished", "interrupted", "failed"]
    seeds: list[int]
    runs: list[TrainedOutput]
    """Runs that trained now."""
    metrics: dict[str, IntervalOutput]
    figures_left: NotRequired[FiguresLeft]
    quick: NotRequired[Changes]


class TrainDryRunOutput(TypedDict):
    """`ditlab train --dry-run`: nothing was started."""

    status: Literal["dry-run"]
    spec_hash: str
    steps: int
    total: int
    """Parameters."""
    quick: NotRequired[Changes]


class ProofOutput(TypedDict):
    """`ditlab prove`."""

    holds: bool
    verdict: str
    spec: str
    engine: str
    twin: str
    """Sentence on the parts that were made smaller than the spec has them; empty for none."""
    seconds: float
    made_by: dict[str, Any]
    untold: list[str]
    """Sentences on faults that rounding would hide."""
    comparisons: list[dict[str, Any]]


NotProvedOutput = TypedDict("NotProvedOutput", {"status": Literal["not proved"], "proof": ProofOutput})


class TrialOutput(TypedDict):
    """One run of a sweep."""

    number: int
    run_id: str
    values: dict[str, Any]
    """Value by axis."""
    status: str
    step: int
    metrics: Numbers
    """The sweep's metrics; null where the trial has none yet."""
    note: str
    """Reason of a failure."""
    arm: NotRequired[int]
    seed: NotRequired[int]


class BestOutput(TypedDict):
    """A trial, or with several seeds an arm, by its metrics."""

    number: int
    run_id: str
    values: dict[str, Any]
    metrics: dict[str, float]
    seeds: NotRequired[list[int]]
    intervals: NotRequired[dict[str, IntervalOutput]]


class ComparableOutput(BestOutput):
    """Best of the trials whose metrics are measured alike."""

    where: dict[str, Any]
    trials: int


class DifferenceOutput(IntervalOutput):
    """An arm's value minus the best one's."""

    arm: int
    is_paired: bool


class SweepOutput(TypedDict):
    """`ditlab tune`."""

    run_id: str
    status: Literal["finished", "interrupted", "stopped"]
    """stopped: by a budget (exit code 0); interrupted: by a signal (130). `--resume RUN` goes on."""
    reason: str
    """Clause on the budget that stopped it; empty for another end."""
    trials: list[TrialOutput]
    """The best first."""
    best: BestOutput | None
    why_no_best: str
    best_of_comparable: list[ComparableOutput]
    report: str
    arms: NotRequired[list[BestOutput]]
    differences: NotRequired[list[DifferenceOutput]]
    not_told_apart: NotRequired[list[int]]
    """Arms whose interval of the difference to the best one holds zero."""
    race: NotRequired[list[str]]
    quick: NotRequired[Changes]


PlannedTrialOutput = TypedDict("PlannedTrialOutput", {
    "number": int, "values": dict[str, Any], "parameters": int, "steps": int, "seconds": float | None, "arm": int,
    "seed": int,
})  # fmt: skip


class SweepDryRunOutput(TypedDict):
    """`ditlab tune --dry-run`."""

    status: Literal["dry-run"]
    trials: list[PlannedTrialOutput]
    """Empty for a search that proposes values as it goes."""
    num_trials: int
    concurrent: int
    seconds: float | None
    """Expected duration of what is left of the sweep."""
    device_hours: float | None
    """Expected hours of devices of what is left, as a budget counts them."""
    device: Device
    idle_seconds: float | None
    """Expected duration on this machine without the work of others; null where these did not keep it busy."""
    quick: NotRequired[Changes]


class PointOutput(TypedDict):
    """A point of a sweep over samples, by the means over its seeds."""

    number: int
    values: dict[str, Any]
    metrics: Numbers
    options: list[str]
    """Options of `ditlab sample` that draw so."""
    frontier: bool
    interval: IntervalOutput | None


class SamplesSweepOutput(TypedDict):
    """`ditlab tune` of a sweep whose base is `{run: RUN}`."""

    run_id: str
    status: Literal["finished", "interrupted"]
    of: str
    """The run whose samples were drawn."""
    points: list[PointOutput]
    best: int | None
    not_told_apart: list[int]
    report: str


PlannedPointOutput = TypedDict("PlannedPointOutput", {"number": int, "values": dict[str, Any], "evaluations": float})
SamplesDryRunOutput = TypedDict("SamplesDryRunOutput", {
    "status": Literal['dry-run'], "of": str, "points": list[PlannedPointOutput], "samples": int, "seeds": list[int],
    "draws": int, "evaluations": float, "seconds": float, "bytes": int,
})  # fmt: skip
SubmittedOutput = TypedDict("SubmittedOutput", {"job": str, "status": str})


@with_config(ConfigDict(extra="allow"))
class JobOutput(TypedDict):
    """`ditlab submit`: also every key of the object that the job's own command printed."""

    job: str
    job_status: str


class FilesOutput(TypedDict):
    """Files that a command wrote."""

    files: list[str]


class StepFilesOutput(FilesOutput):
    """`ditlab sample`, `ditlab export`: files made of a run's weights at a step."""

    run_id: str
    step: int


class AskOutput(TypedDict):
    """`ditlab ask`: the answer of a run in training."""

    run_id: str
    number: int
    """Number of the request in this run, from 1."""
    verb: Literal["sample", "evaluate", "checkpoint", "stop-after-evaluation"]
    status: Literal["done", "not done", "open"]
    """open: no answer yet; not done: `message` says why."""
    step: int
    """Step after which it was done, or that the run had come to."""
    metrics: Numbers
    files: list[str]
    checkpoint: str | None
    message: str


class StatisticsOutput(FilesOutput):
    """`ditlab data statistics`."""

    images: int
    figures: dict[str, EndsOutput]
    """Figures against the other set, by name; empty without one."""


class EvaluationOutput(TypedDict):
    """`ditlab evaluate`."""

    run_id: str
    step: int
    metrics: Numbers
    evaluation: str
    """Digest of measurements, spec and weights: equal for one evaluation made twice."""
    measurements: dict[str, MeasurementOutput]
    """Measurement by group of metrics: eval, held_out, assessed, quality."""
    intervals: dict[str, list[float | None]]
    """Ends of the 95 % interval by metric, where it has one."""
    differences: dict[str, list[str]]
    """Differences from training's measurement in words, by group; such a group is not added to the run."""
    left_out: NotRequired[dict[str, list[str]]]
    """Classes that were kept out of training, by column."""
    tables: NotRequired[dict[str, dict[str, list[Any]]]]
    files: NotRequired[list[str]]


class FollowedOutput(TypedDict):
    """`ditlab evaluate --watch`."""

    run_id: str
    evaluations: list[EvaluationOutput]


AveragePointOutput = TypedDict("AveragePointOutput", {
    "profile": str, "profile_error": float, "evaluation": str, "metrics": Numbers,
})  # fmt: skip


class AveragesOutput(FilesOutput):
    """`ditlab evaluate --ema`."""

    run_id: str
    step: int
    snapshots: int
    averages: list[AveragePointOutput]


class ReplayOutput(FilesOutput):
    """`ditlab replay`; with `--check` also whether it holds (exit code 1 where not)."""

    run_id: str
    name: str
    origins: list[str]
    remarks: list[str]
    steps: list[dict[str, Any]]
    holds: NotRequired[bool]
    bound: NotRequired[float]
    bound_reason: NotRequired[str]
    comparisons: NotRequired[list[dict[str, Any]]]
    unchecked: NotRequired[list[Any]]
    changes: NotRequired[list[str]]
    worst: NotRequired[list[int]]
    explanations: NotRequired[list[str]]


VerifiedPartOutput = TypedDict("VerifiedPartOutput", {
    "part": str, "verdict": Literal['holds', 'off', 'not checked'], "sentence": str,
})  # fmt: skip
VerifyOutput = TypedDict("VerifyOutput", {
    "run_id": str, "name": str, "holds": bool, "seconds": float, "parts": list[VerifiedPartOutput], "conclusion": str,
})  # fmt: skip
ComparedOutput = TypedDict("ComparedOutput", {
    "run_id": str, "name": str, "family": str, "status": str, "step": int, "samples": int, "seconds": float | None,
    "samples_per_second": float | None, "parameters": int, "forked_from": str | None, "metrics": Numbers,
    "measurements": dict[str, MeasurementOutput], "runs": NotRequired[list[str]],
    "intervals": NotRequired[dict[str, IntervalOutput]],
})  # fmt: skip


class CompareOutput(FilesOutput):
    """`ditlab compare`."""

    runs: list[ComparedOutput]


ReportOutput = TypedDict("ReportOutput", {"run_id": str, "file": str, "bytes": int})
WatchOutput = TypedDict("WatchOutput", {"url": str, "run_id": str, "pid": int})
UiOutput = TypedDict("UiOutput", {"url": str, "page": str, "home": str, "pid": int})
ParamsOutput = TypedDict("ParamsOutput", {
    "total": int, "trainable": int, "components": dict[str, int], "training_only": dict[str, int],
    "roles": dict[str, int], "by_parameter": list[dict[str, Any]], "shapes": NotRequired[list[dict[str, Any]]],
})  # fmt: skip
SettingOutput = TypedDict("SettingOutput", {
    "stage": int, "offload": str, "offload_parameters": str, "activation_checkpointing": bool, "per_gpu_bytes": int,
    "margin_bytes": int, "host_bytes": int, "checkpoint_copy_bytes": int, "peak": str, "step_seconds": float,
    "micro": int, "largest_micro": int, "fits": bool, "passes": dict[str, int], "update": dict[str, int],
    "evaluation": dict[str, int], "flops": Numbers, "seconds": Numbers,
})  # fmt: skip


class PlanOutput(TypedDict):
    """`ditlab plan`; `fits`, `per_gpu_bytes` and `step_seconds` are of the spec as it is, times and hours of the
    recommended setting."""

    fits: bool
    per_gpu_bytes: int
    step_seconds: float
    gpu: str
    gpus: int
    gpu_memory: int
    rates: str
    own: SettingOutput
    recommended: SettingOutput | None
    settings: list[SettingOutput]
    samples_per_second: float
    run_seconds: float | None
    """Duration of the run, without evaluations and saves; null where its steps are unknown."""
    gpu_hours: float | None
    """Hours of all workers."""
    device: Device
    device_hours: float | None
    """Hours of GPUs or cores, as a budget counts them."""
    cost: float | None
    checkpoints_kept: int
    left_out: list[str]
    parameters: int
    frozen: int
    why: str
    steps: int | None
    checkpoint_bytes: int
    snapshot_bytes: int
    snapshots: int | None
    data_bytes: int | None
    encoder_flops: float
    optimizer_flops: float
    picture: str | None
    applied: str | None
    trials: NotRequired[int]
    """This key and the next three: for a sweep."""
    sweep_gpu_hours: NotRequired[float | None]
    sweep_fits: NotRequired[bool]
    sweep_cost: NotRequired[float | None]


ProfileOutput = TypedDict("ProfileOutput", {
    "steps": int, "step_seconds": float, "phases": Numbers, "kinds": Numbers, "modules": list[dict[str, Any]],
    "operators": list[dict[str, Any]], "matrix_rate": float, "trace": str, "picture": str,
})  # fmt: skip
KindsOutput = TypedDict("KindsOutput", {"kinds": list[str]})
ExperimentsOutput = TypedDict("ExperimentsOutput", {"experiments": dict[str, str]})


class ValidateOutput(TypedDict):
    """`ditlab validate`."""

    valid: list[str]
    spec_hash: dict[str, str]
    """Hash over the fields that decide the trained weights, of each experiment."""
    not_compared: dict[str, str]
    """Reason why a spec was not compared with its data, by spec: they are not on this machine, or not written yet."""


ShowOutput = TypedDict("ShowOutput", {"spec": dict[str, Any], "spec_hash": NotRequired[str]})
WrittenStoreOutput = TypedDict("WrittenStoreOutput", {
    "name": str, "path": str, "rows": int, "fingerprint": str, "outcome": str, "note": str | None,
    "text": dict[str, Any] | None, "receipt": dict[str, Any] | None, "left_out": dict[str, int],
})  # fmt: skip


class EncodeOutput(TypedDict):
    """`ditlab data encode`."""

    stores: list[WrittenStoreOutput]


class ImportOutput(EncodeOutput):
    """`ditlab data import`."""

    kind: str


ImportPreviewOutput = TypedDict("ImportPreviewOutput", {
    "kind": str, "dry_run": Literal[True], "stores": list[dict[str, Any]],
})  # fmt: skip
UploadOutput = TypedDict("UploadOutput", {
    "name": str, "rows": int, "fingerprint": str, "uri": str, "outcome": str, "files_sent": int, "bytes": int,
})  # fmt: skip
ListedStoreOutput = TypedDict("ListedStoreOutput", {
    "store": str, "name": str, "rows": int, "classes": int, "bytes": int, "runs": list[str], "problem": str,
})  # fmt: skip
StoresOutput = TypedDict("StoresOutput", {"stores": list[ListedStoreOutput]})
RemovedOutput = TypedDict("RemovedOutput", {"removed": list[str]})
StoreOutput = TypedDict("StoreOutput", {
    "path": str, "name": str, "description": str, "source": dict[str, Any], "receipt": dict[str, Any] | None,
    "rows": int, "columns": dict[str, dict[str, Any]], "text": dict[str, Any] | None, "attachments": dict[str, Any],
    "fingerprint": str, "shards": int, "picture": str | None, "texts": dict[str, Any], "buckets": NotRequired[Any],
})  # fmt: skip
SpecDataOutput = TypedDict("SpecDataOutput", {
    "name": str, "fingerprint": str, "draw": str | None, "parts": dict[str, dict[str, Any]],
    "columns": dict[str, dict[str, Any]], "problems": dict[str, str], "note": str,
})  # fmt: skip
WeightsOutput = TypedDict("WeightsOutput", {
    "format": str, "family": str, "taken": str, "model": dict[str, Any], "num_file": int, "num_network": int,
    "fits": bool, "num_fitting": int, "problems": list[str], "kept": list[str], "sha256": str,
    "files": dict[str, str], "revision": str | None, "notes": list[str], "command": list[str],
})  # fmt: skip


class RunRowOutput(TypedDict):
    """A run, or the runs that differ in the seed alone."""

    run_id: str
    name: str
    family: str
    status: str
    """running, lost, finished, failed, interrupted or stopped."""
    created: str
    train_loss: float | None
    """Median of the last steps."""
    step: NotRequired[int]
    """This key and the next ones: not with `--tracking`."""
    total_steps: NotRequired[int]
    message: NotRequired[str]
    """Reason of an interruption or failure."""
    main_metric: NotRequired[str]
    main_value: NotRequired[float | None]
    metrics: NotRequired[Numbers]
    samples_per_second: NotRequired[float | None]
    state: NotRequired[str]
    device_hours: NotRequired[DeviceHours]
    """Hours of devices that it has taken."""
    half_widths: NotRequired[Numbers]
    """Half of the 95 % interval by key, for several seeds."""
    seeds: NotRequired[int]
    runs: NotRequired[list[str]]
    mlflow_run_id: NotRequired[str]
    """With `--tracking`, as the next key."""
    experiment: NotRequired[str]


HomeBudgetOutput = TypedDict("HomeBudgetOutput", {"hours": float, "used": DeviceHours})


class RunsOutput(TypedDict):
    """`ditlab runs`."""

    runs: list[RunRowOutput]
    budget: NotRequired[HomeBudgetOutput]
    """Where DITLAB_BUDGET is set."""


class RunOutput(TypedDict):
    """`ditlab runs show`."""

    run_id: str
    name: str
    family: str
    status: str
    message: str
    step: int
    total_steps: int
    created: str
    updated: str
    spec_hash: str
    parent: str
    trial: int
    plugins: dict[str, str]
    is_locked: bool
    """True while a process trains it."""
    running: dict[str, str] | None
    folder: str
    tracking_uri: str
    unsent: int | None
    spec: dict[str, str]
    metrics: dict[str, dict[str, float | None]]
    """Step and value of each metric's last point."""
    checkpoints: dict[str, Any]
    bytes: dict[str, int]
    trials: dict[str, int]
    notes: list[str]
    time: dict[str, Any] | None
    start: str | None
    proof: str | None
    lineage: dict[str, Any] | None


RenameOutput = TypedDict("RenameOutput", {"run_id": str, "name": str, "before": str})
QueryOutput = TypedDict("QueryOutput", {"columns": list[str], "rows": list[dict[str, Any]]})
TablesOutput = TypedDict("TablesOutput", {"schema": list[str]})
SyncedOutput = TypedDict("SyncedOutput", {"run_id": str, "sent": int, "left": int})
SyncOutput = TypedDict("SyncOutput", {"synced": list[SyncedOutput], "refilled": dict[str, Any] | None})
EventOutput = TypedDict("EventOutput", {"time": str, "kind": str, "text": str})
LogOutput = TypedDict("LogOutput", {"run_id": str, "events": list[EventOutput]})
DeletedOutput = TypedDict("DeletedOutput", {
    "run_id": str, "name": str, "status": str, "bytes": int, "unsent": int, "tracking_uri": str,
    "checkpoints": str | None,
})  # fmt: skip
DeleteOutput = TypedDict("DeleteOutput", {"dry_run": bool, "bytes": int, "runs": list[DeletedOutput]})


class DoctorOutput(TypedDict):
    """`ditlab doctor`; exit code 1 where something is missing."""

    missing: list[str]
    findings: list[dict[str, str]]
    verdict: NotRequired[str]
    """With `--cluster`."""


CompletionOutput = TypedDict("CompletionOutput", {"shell": str, "script": str})


RESULTS: dict[str, Any] = {
    "train": TrainedOutput | SeedsOutput | TrainDryRunOutput | NotProvedOutput,
    "tune": SweepOutput | SweepDryRunOutput | SamplesSweepOutput | SamplesDryRunOutput,
    "submit": SubmittedOutput | JobOutput,
    "sample": StepFilesOutput,
    "ask": AskOutput,
    "evaluate": EvaluationOutput | AveragesOutput | FollowedOutput,
    "prove": ProofOutput,
    "replay": ReplayOutput,
    "verify": VerifyOutput,
    "compare": CompareOutput,
    "report": ReportOutput,
    "watch": WatchOutput,
    "params": ParamsOutput,
    "plan": PlanOutput,
    "profile": ProfileOutput,
    "figures": FilesOutput | KindsOutput,
    "new": FilesOutput | ExperimentsOutput,
    "validate": ValidateOutput,
    "show": ShowOutput,
    "schema": FilesOutput | dict[str, Any],
    "data import": ImportOutput | ImportPreviewOutput,
    "data encode": EncodeOutput,
    "data upload": UploadOutput,
    "data list": StoresOutput,
    "data statistics": StatisticsOutput,
    "data rm": RemovedOutput,
    "data inspect": StoreOutput | SpecDataOutput,
    "export": StepFilesOutput,
    "weights inspect": WeightsOutput,
    "runs": RunsOutput,
    "runs show": RunOutput,
    "runs log": LogOutput,
    "runs query": QueryOutput | TablesOutput,
    "runs rename": RenameOutput,
    "runs rm": DeleteOutput,
    "runs sync": SyncOutput,
    "ui": UiOutput,
    "doctor": DoctorOutput,
    "completion": CompletionOutput,
}
"""Type of each command's object; `data import` stands for each kind of data."""


def result_type(command: str, *, is_strict: bool = False) -> TypeAdapter[Any]:
    """Return the type of the last line that a command prints; strict: keys that it has not are refused.

    Raises UserError for an unknown command.
    """
    if command not in RESULTS:
        raise UserError(f"--result {command}: no command is called so; {nearest(command, list(RESULTS))}")
    extra: Literal["forbid", "ignore"] = "forbid" if is_strict else "ignore"
    config = ConfigDict(extra=extra, use_attribute_docstrings=True, strict=True)
    return TypeAdapter(RESULTS[command] | ErrorOutput, config=config)


def result_schema(command: str) -> dict[str, Any]:
    """JSON schema (2020-12) of the object that a command prints. Raises UserError for an unknown command."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": f"ditlab {command} --json", **result_type(command).json_schema()}
