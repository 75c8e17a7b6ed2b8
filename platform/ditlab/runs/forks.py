"""Forks: runs that go on from another run's checkpoint. Their start, and the checks of it before
the fork exists.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.start_point import order_changes
from ditlab.data.images.captions import LABEL
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.launch import checkpoint_store, recorded_checkpoints, start_point
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.start import Start, StartState, parse_start
from ditlab.spec.values import format_value
from ditlab.storage.local import LocalFiles
from ditlab.tracking.journal import recorded_dataset
from ditlab.tracking.records import find_training_run, list_runs
from ditlab.training.state import named_tensors
from ditlab.weights.class_names import REMEDY, moved_class, unmatched_names
from ditlab_models.layers.lora import A, B
from ditlab_models.parameters import MetaModel

MOST_LISTED = 12
"""Tensors of other shapes that a message lists."""


def requested_start(
    text: str | None, weights_only: bool, resume: str | None, home: Home
) -> Start | None:
    """Return the start that `--from RUN[@STEP]` and `--weights-only` ask for beside `--resume`;
    None without `--from`.

    It names the run by its id, and its newest checkpoint where `text` has no step; with
    `weights_only` the averaged weights are taken where the run keeps an average. Raises UserError
    for options that exclude each other, and for a text that names no run or checkpoint.
    """
    if text is None:
        if weights_only:
            raise UserError(
                "--weights-only says what --from takes over, and --from is not given; add "
                "--from RUN@STEP."
            )
        return None
    if resume not in (None, "auto"):
        raise UserError(
            f"--from {text} and --resume {resume} exclude each other: a fork goes on from its "
            "own checkpoints; leave --from out, and give the spec.yaml in the folder of run "
            f"{resume}."
        )
    named = parse_start(text)
    if resume and named.step is None:
        raise UserError(
            f"--from {text} with --resume auto would be another fork whenever that run saves; "
            f"name the step, as in --from {text}@400."
        )
    try:
        found = find_training_run(home, named.run)
        step = named.step
        if step is None:
            store = recorded_checkpoints(found.folder)
            steps = store.steps()
            if not steps:
                raise UserError(
                    f"run {found.folder.run_id} ({found.record.status}) has no checkpoint at "
                    f"{store.location} yet; wait for its first one, or name another run."
                )
            step = steps[-1]
        state: StartState = "all"
        if weights_only:
            if load_recorded_experiment(found.folder.spec).keeps_average:
                state = "averaged"
            else:
                state = "trained"
        return Start(run=found.folder.run_id, step=step, state=state)
    except UserError as error:
        raise UserError(f"--from {text}: {error}") from None


def hold_start(start: Start, home: Home, run_id: str) -> None:
    """Keep the parent's checkpoint for a fork. Raises UserError where the checkpoint is gone, or
    cannot be marked.
    """
    recorded_checkpoints(home.run(start.run)).hold(start.step, run_id)


def check_start(
    experiment: Experiment,
    model: MetaModel,
    home: Home,
    total_steps: int,
    resumed: RunFolder | None = None,
    classes: Mapping[str, list[str]] | None = None,
) -> str:
    """Check that a fork can begin where `start` says, its shards by their hashes; return a line for
    people.

    `classes`: names of the data's classes by column. A resumed fork with a checkpoint of its own
    needs its parent no more. Raises UserError for a start that does not fit, and for classes that
    mean others than the parent's.
    """
    start = experiment.start
    assert start is not None
    name = _check_parent(start, home, resumed)
    if total_steps <= start.first_step:
        raise UserError(
            f"start.step={start.step} leaves nothing of the run's {total_steps} steps; raise "
            "training.epochs, or set start.state to averaged or trained, which begin at step 0."
        )
    line = f"fork of run {start.run} ({name}) at step {start.step:,}"
    if resumed and checkpoint_store(resumed, experiment.checkpoint.storage).steps():
        return line
    run_id = resumed.run_id if resumed else ""
    point = start_point(experiment, home, run_id)
    assert point
    store = point.find_checkpoints()
    with point.open(verify=isinstance(store.files, LocalFiles)) as reader:
        before = reader.manifest.spec["model"].get("num_classes")
        now = getattr(experiment.model, "num_classes", None)
        class_note = _check_classes(
            start.run,
            before,
            now,
            recorded_dataset(home.run(start.run).journal).get("classes", {}),
            classes,
        )
        check_state(experiment, model, start, reader)
        others = other_factors(reader.manifest.spec, experiment)
        if others:
            line += (
                f", whose weights were trained with {', '.join(others.values())} and compute "
                f"something else with this spec's {', '.join(others)}"
            )
        if before != now:
            line += (
                f", its table of classes grown from {before} to {now} (a new class begins as "
                "the null class)"
            )
        if class_note:
            line += f"; {class_note.rstrip('.')}"
        changed = order_changes(reader.manifest.spec, experiment)
    if start.state != "all":
        return (
            f"{line}: its {start.state} weights; optimiser, schedules and order of samples "
            "begin again"
        )
    if changed:
        order = f"the order of samples begins again, by {', '.join(changed)}"
    else:
        order = "the order of samples goes on"
    return f"{line}: all of its state; schedules and noise go on at that step, {order}"


def _check_classes(
    run: str,
    before: int | None,
    now: int | None,
    theirs: Mapping[str, list[str]],
    own: Mapping[str, list[str]] | None,
) -> str:
    """Raise UserError for fewer classes than the parent's, and for numbers that mean other classes
    than there; return a sentence on classes that nothing compares. `own` None: not known yet.
    """
    if before and now and now < before:
        raise UserError(
            f"model.num_classes={now} is less than the {before} of run {run}: a table of "
            f"classes grows and never shrinks; set it to {before} or more."
        )
    if own is None:
        return ""
    for column, names in theirs.items():
        moved = moved_class(f"run {run}", names, own.get(column, []), column)
        if moved:
            raise UserError(
                f"{moved}, whose numbers a fork keeps; {REMEDY}: name its classes there in their "
                "order, new ones behind them."
            )
    if not before or not now:
        return ""
    return unmatched_names(f"run {run}", theirs.get(LABEL, []), own.get(LABEL, []))


def check_state(
    experiment: Experiment, model: MetaModel, start: Start, reader: CheckpointReader
) -> None:
    """Raise UserError where the parent's checkpoint does not hold what the fork takes over."""
    parent = reader.manifest.spec
    wanted = f"run {start.run}"
    family = parent["model"]["family"]
    if family != experiment.model.family:
        raise UserError(
            f"model.family={experiment.model.family} cannot go on from {wanted}, a {family}; "
            "name a run of the same family."
        )
    fresh: tuple[str, ...] = ()
    if start.state != "all":
        fresh = (f".{A}", f".{B}")  # adapters beside another run's weights
    differences = shape_differences(model, reader.shapes, fresh)
    if differences:
        listed = ", ".join(differences[:MOST_LISTED])
        if len(differences) > MOST_LISTED:
            listed += f" and {len(differences) - MOST_LISTED} more"
        raise UserError(
            f"{wanted} has other parameters than this network and loss in {len(differences)} "
            f"tensors: {listed}; give model and objective as that run has them."
        )
    if start.state == "averaged" and not reader.has("ema"):
        raise UserError(
            f"start.state=averaged: {wanted} keeps no average of its weights; set start.state "
            "to trained."
        )
    if start.state != "all":
        return
    own_frozen = {name for name, each in _named_tensors(model)[0].items() if not each.requires_grad}
    moved = sorted(own_frozen ^ reader.frozen())
    if moved:
        raise UserError(
            "training.freeze and training.lora leave other parameters frozen than those of "
            f"{wanted} ({len(moved)}, such as {moved[0]}), whose moments the state has not; "
            "freeze the same, or take its weights alone (--weights-only, start.state)."
        )
    before = parent["optimizer"].get("kind", "adamw")
    now = experiment.optimizer.kind
    if before != now:
        raise UserError(
            f"optimizer.kind={now} cannot go on with the moments of {wanted}, which "
            f"optimizer.kind={before} wrote; set optimizer.kind to {before}, or take its "
            "weights alone (--weights-only, start.state)."
        )
    if experiment.training.ema and not reader.has("ema"):
        raise UserError(
            f"training.ema is set, and {wanted} keeps no average to go on with; set "
            "training.ema to null, or take its weights alone (--weights-only, start.state)."
        )


def other_factors(parent: Mapping[str, Any], experiment: Experiment) -> dict[str, str]:
    """Return settings that no tensor shows, by their paths, as the parent had them where it had
    other ones: equal weights compute something else.
    """
    spec = experiment.to_dict()
    pairs = [
        (f"model.{name}", parent["model"].get(name, value), value)
        for name, value in spec["model"].items()
        if name not in ("init", "num_classes")
    ]
    here = spec["training"]["lora"]
    there = parent["training"].get("lora")
    if here and there:
        pairs.append(("training.lora.alpha", there["alpha"], here["alpha"]))
    return {path: f"{path}={format_value(before)}" for path, before, now in pairs if before != now}


def shape_differences(
    model: MetaModel, parent: Mapping[str, list[int]], fresh: tuple[str, ...]
) -> list[str]:
    """Return what differs between the tensors of a model and those of a parent; `fresh`: ends of
    the names of tensors that the parent may lack."""
    parameters, buffers = _named_tensors(model)
    own = {name: list(value.shape) for name, value in (parameters | buffers).items()}
    found = []
    for name in dict.fromkeys([*own, *parent]):
        if name.endswith(fresh) and name not in parent:
            continue
        here = _shape_text(own.get(name))
        there = _shape_text(parent.get(name))
        if here != there:
            found.append(f"{name} {here} here, {there} there")
    return found


def _shape_text(shape: list[int] | None) -> str:
    if shape is None:
        return "none"
    return "x".join(map(str, shape)) or "1"


def _named_tensors(model: MetaModel) -> Any:
    """Return parameters and buffers of a model by name."""
    owners: Any = {"network": model.network, "objective": model.objective.modules or nn.Module()}
    return named_tensors(owners)


def _check_parent(start: Start, home: Home, resumed: RunFolder | None) -> str:
    """Return the parent's name; `gone` for one that a resumed fork has outlived. Raises
    UserError.
    """
    if resumed and start.run not in {record.run_id for record in list_runs(home)}:
        return "gone"
    try:
        found = find_training_run(home, start.run)
    except UserError as error:
        raise UserError(f"start.run={start.run}: {error}") from None
    if found.folder.run_id != start.run:
        raise UserError(
            f"start.run={start.run} names run {found.folder.run_id}; write that id, which no "
            "other run has."
        )
    return found.record.name
