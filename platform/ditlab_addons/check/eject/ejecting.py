"""Ejection: the file that trains an experiment, made of the sources of its parts; what such a file
cannot hold is refused, and what it leaves out is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from ditlab.data.loading.held_out import MOST_RUNS, RUN_ROWS
from ditlab.data.splits import DataSplits, classes_with_samples, open_data
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.row_changes import RowChanges
from ditlab.data.stores.store import Store
from ditlab.errors import UserError, cannot_write
from ditlab.flattening.merging import merge_bases
from ditlab.flattening.printing import is_constant, print_program, value_text
from ditlab.flattening.program import Program
from ditlab.flattening.sources import Imported
from ditlab.flattening.tightening import tighten
from ditlab.flattening.units import Unit
from ditlab.home import Home
from ditlab.spec.data import order_of
from ditlab.spec.encoders import LATENTS
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import (
    ConstantSchedule,
    SteppedCosineRestartSchedule,
    Training,
    WarmupCosineSchedule,
    WarmupStableDecaySchedule,
)
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import write_whole
from ditlab.training.plan import plan_run
from ditlab_addons.check.eject.settings import Settings, StoredField, update_settings
from ditlab_addons.check.eject.trainer import split_rows
from ditlab_models.contract import (
    ANY,
    BatchField,
    CountingObjective,
    Family,
    PreparingObjective,
    RetiringObjective,
    TextCodec,
)

SPEC_FOLLOWS = "tracking and the like have no effect here:\n"
"""End of a file's docstring before the spec, by which a run of it is adopted."""
TRAINER = "ditlab_addons.check.eject.trainer"
HEAD = '''\
"""Training of {name}, as `ditlab eject` wrote it: a file to read, to change, and to bring back.

It needs torch, numpy, safetensors and pyarrow; `python {file} FOLDER` trains, and goes on from the
newest checkpoint in the folder; `torchrun --nproc-per-node 2 {file} FOLDER` does so on two workers.
Network, loss and sampler stand first, each after what it needs, then the settings of the training
and the trainer, `FileTrainer`: read its `run` and `train_step` first. The spec without its
defaults, of which tracking and the like have no effect here:

{spec}"""

from __future__ import annotations
'''
MAIN = '''\
def build_trainer(folder: Path) -> FileTrainer:
    """Build network, loss and sampler with the weights of the seed."""
    torch.manual_seed(derived_seed(SETTINGS.seed, "objective"))
    objective = build_objective(OBJECTIVE, MODEL, TEXT)
    torch.manual_seed(derived_seed(SETTINGS.seed, "weights"))
    network = build_network(MODEL)
    sampler = build_sampler(SAMPLING, MODEL, OBJECTIVE, TEXT)
    return FileTrainer(SETTINGS, network, objective, sampler, STORE, folder)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    keep_copy(Path(__file__), folder)
    build_trainer(folder).run()
'''


@dataclass(frozen=True)
class EjectedFile:
    """File that was written."""

    file: Path
    lines: int
    left_out: tuple[str, ...]
    """Sentences on settings without which it trains."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab eject --json`."""
        return {"file": str(self.file), "lines": self.lines, "left_out": list(self.left_out)}


def write_file(experiment: Experiment, home: Home, file: Path) -> EjectedFile:
    """Eject an experiment into a new file. Raises UserError for one that is there already."""
    if file.exists() or file.is_symlink():
        raise UserError(f"--out {file} is there already; name another file, or remove it.")
    text = eject(experiment, open_data(experiment.data, home), file.name)
    try:
        write_whole(file, text.encode())
    except OSError as error:
        raise cannot_write(f"--out {file}", error, "name another place") from error
    return EjectedFile(file, text.count("\n"), tuple(left_out(experiment)))


def eject(experiment: Experiment, data: DataSplits, file: str = "train.py") -> str:
    """Return the text of the file that trains an experiment. Raises UserError for what it could
    not hold.
    """
    settings = eject_settings(experiment, data)
    family = experiment.family
    roots = [
        _method(family, "build_network"),
        _method(family, "build_objective"),
        _method(family, "build_sampler"),
        Unit(TRAINER, "FileTrainer"),
        Unit(TRAINER, "keep_copy"),
    ]
    if data.text is not None:
        roots.append(Unit("ditlab_models.contract", "TextCodec"))
    program = Program(
        roots,
        fixed=[settings, experiment.model, experiment.objective, experiment.sampling],
        read=("run",),
        substitutes={"NoiseSource": "KeyedNoise"},
        evaluated=("components_of",),
        is_brief=True,
        packages=(
            "ditlab_models",
            family.__module__.partition(".")[0],
            "ditlab",
            "ditlab_addons",
        ),
    )
    try:
        imports, definitions = print_program(program, [Imported("sys", None, "sys")])
    except ValueError as error:
        raise UserError(str(error)) from None
    spec = dump_yaml(written_fields(experiment)).rstrip("\n")
    indented = "".join(f"    {line}\n" for line in spec.split("\n"))
    head = HEAD.format(name=experiment.name, file=file, spec=indented)
    parts = [definitions, _constants(experiment, settings, data), MAIN]
    definitions = tighten(merge_bases(definitions))
    gap = "\n" if is_constant(definitions) else "\n\n"  # as isort has it
    return f"{head}\n{imports}{gap}" + "\n\n".join(parts)


def written_fields(spec: BaseModel) -> dict[str, Any]:
    """Return the fields of a spec that are not at their defaults, and those that name a kind."""
    found = dict[str, Any]()
    dumped = spec.model_dump(mode="json", serialize_as_any=True)
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in ("kind", "family") and value == field.get_default(call_default_factory=True):
            continue
        found[name] = written_fields(value) if isinstance(value, BaseModel) else dumped[name]
    return found


def _constants(experiment: Experiment, settings: Settings, data: DataSplits) -> str:
    """Return the constants of a file: its sections of the spec, and where its data lie."""
    sections = {
        "SETTINGS": settings,
        "MODEL": experiment.model,
        "OBJECTIVE": experiment.objective,
        "SAMPLING": experiment.sampling,
    }
    lines = [f"{name} = {type(section).__name__}()" for name, section in sections.items()]
    lines.append(f"TEXT = {_codec(data.text)}")
    lines.append(f"STORE = Path({value_text(str(data.train.store.path))})")
    return "\n".join(lines) + "\n"


def _codec(text: TextCodec | None) -> str:
    """Return the expression of a codec that shows tokens as numbers."""
    if text is None:
        return "None"
    facts = (text.vocabulary, text.end, text.bytes_per_token, text.packing)
    return f"TextCodec(lambda text: [*text.encode()], str, {', '.join(map(value_text, facts))})"


def _method(family: Family, name: str) -> Unit:
    """Return the unit of a family's method."""
    owner = next(kind for kind in type(family).__mro__ if name in vars(kind))
    return Unit(owner.__module__, owner.__name__, name)


SCHEDULES = (
    ConstantSchedule,
    WarmupCosineSchedule,
    WarmupStableDecaySchedule,
    SteppedCosineRestartSchedule,
)
Split = Literal["rows", "groups", "runs", "classes", "none"]


def eject_settings(experiment: Experiment, data: DataSplits) -> Settings:
    """Return the settings of an experiment's training. Raises UserError for what one file cannot
    hold.
    """
    refuse_unfit(experiment, data)
    plan = plan_run(experiment, data)
    family = experiment.family
    columns = data.train.columns
    fields = [each for each in experiment.batch_fields() if each.name in columns]
    objective: Any = family.build_objective(experiment.objective, experiment.model, data.text)
    sampler: Any = family.build_sampler(
        experiment.sampling, experiment.model, experiment.objective, data.text
    )
    if sampler.takes_rows == "completed" and _selects_rows(experiment):
        raise UserError(
            "sampling.mask.kind=bed selects rows by their coordinates, which an ejected file does "
            "not; set sampling.mask.kind to random for it (--set)."
        )
    settings = Settings(
        seed=experiment.seed,
        steps=plan.total_steps,
        batch_size=experiment.batch.size,
        pass_size=experiment.batch.micro or 0,
        drawn_at_once=experiment.batch.micro or experiment.batch.size,
        fields=tuple(stored_field(each, columns[each.name]) for each in fields),
        update=update_settings(experiment.optimizer),
        schedule=experiment.schedule,
        cuts_captions=any(each.name == "caption" and each.shape[:1] == (ANY,) for each in fields),
        has_buffers=has_buffers(experiment, objective.modules),
        has_objective_weights=objective.modules is not None,
        prepares=isinstance(objective, PreparingObjective),
        counted=tuple(objective.counted) if isinstance(objective, CountingObjective) else (),
        retires=isinstance(objective, RetiringObjective),
        takes_rows=sampler.takes_rows,
        log_every=experiment.tracking.every,
        evaluate_every=experiment.evaluation.every or plan.total_steps,
        evaluated=experiment.evaluation.limit,
        save_every=experiment.checkpoint.every or plan.total_steps,
        samples=experiment.evaluation.samples,
        classes=tuple(classes_with_samples(columns)),
        shows=_shown(experiment, data),
        **_of_training(experiment.training),
        **_changes(data),
        **held_out(experiment, data),
    )
    _check_split(settings, data)
    return settings


def has_buffers(experiment: Experiment, objective_modules: nn.Module | None) -> bool:
    """Return True where network or loss have buffers that belong to the state."""
    with torch.device("meta"):
        network: Any = experiment.family.build_network(experiment.model)
    modules = [network, objective_modules or nn.Module()]
    return any(
        module.state_dict().keys() - dict(module.named_parameters()).keys() for module in modules
    )


def _of_training(training: Training) -> dict[str, Any]:
    """Return the settings that the section `training` has."""
    return {
        "clip": training.clip,
        "precision": training.precision,
        "ema": training.ema.decay if training.ema else None,
        "lengths": training.averages.lengths if training.averages else (),
    }


def _changes(data: DataSplits) -> dict[str, Any]:
    """Return the settings that say how samples are changed in training."""
    changes = data.train.changes[0] if data.train.changes else RowChanges(0)
    return {"flip": changes.flip, "one_caption": changes.one_caption}


def held_out(experiment: Experiment, data: DataSplits) -> dict[str, Any]:
    """Return the settings that say which rows are held out."""
    columns = data.train.columns
    spec: Any = experiment.data
    share = 0.0
    split: Split = "rows"
    group = 1
    if data.left_out:
        split = "classes"
    elif not len(data.held_out):
        split = "none"
    else:
        share = spec.hold_out
        if data.text is not None:
            split = "runs"
        elif spec.kind == "captioned_digits":
            split = "groups"
            group = spec.colours
    classes = [
        (name, class_numbers(columns[name], values)) for name, values in data.left_out.items()
    ]
    return {
        "split": split,
        "held_out_share": share,
        "held_out_group": group,
        "held_out_runs": min(MOST_RUNS, max(1, len(data.train.store) // RUN_ROWS)),
        "held_out_classes": tuple(classes),
    }


def _check_split(settings: Settings, data: DataSplits) -> None:
    """Raise UserError where the file would train on other rows."""
    store = data.train.store
    columns = {name: store.tensor(name).numpy() for name, _ in settings.held_out_classes}
    train, _ = split_rows(settings, len(store), columns)
    places = np.arange(len(data.train))
    if len(train) == len(places) and np.array_equal(train, data.train.rows[places]):
        return
    raise UserError(
        f"{data.train.origin} holds {len(train) - len(places):,} rows that repeat held-out ones "
        "and are not trained on, which an ejected file cannot tell; set data.hold_out to 0 for it "
        "(--set), or import the data again without copies."
    )


def refuse_unfit(experiment: Experiment, data: DataSplits) -> None:
    """Raise UserError for a setting that one file cannot hold."""
    reason = next(_unfit(experiment, data), "")
    if reason:
        raise UserError(f"{reason} An ejected file holds no more than it says.")


def _unfit(experiment: Experiment, data: DataSplits) -> Iterator[str]:
    """Yield sentences on settings that one file cannot hold."""
    training = experiment.training
    zero = experiment.engine.zero
    if experiment.optimizer.kind not in ("adamw", "muon"):
        yield (
            f"optimizer.kind={experiment.optimizer.kind} is an add-on's, and a file has adamw and "
            "muon; set one of them (--set)."
        )
    if not isinstance(experiment.schedule, SCHEDULES):
        yield f"schedule.kind={experiment.schedule.kind} is an add-on's; set another (--set)."
    if training.precision == "fp16":
        yield "training.precision=fp16 needs a loss scale; set it to bf16 or fp32 (--set)."
    if training.freeze or training.lora:
        yield (
            "training.freeze and training.lora train a part of a network alone; set both to null "
            "(--set)."
        )
    if experiment.model.init:
        yield "model.init begins from published weights; set it to null (--set)."
    if zero.offload != "none" or zero.offload_parameters != "none":
        yield (
            f"engine.zero.offload={zero.offload} keeps state off the device; set "
            "engine.zero.offload and engine.zero.offload_parameters to none (--set)."
        )
    if experiment.encoders.content():
        yield (
            "encoders names frozen encoders, which a file has not; store their features with "
            "`ditlab data encode`, and name that store under data."
        )
    if data.mixture is not None:
        yield "data.kind=mixture draws from several stores; eject with one of its parts as data."
    elif not isinstance(data.train.store, Store):
        yield (
            f"{data.train.origin} is streamed, or has several image sizes; name a plain store "
            "under data."
        )
    elif order_of(experiment.data).kind != "full":
        kind = order_of(experiment.data).kind
        yield f"data.order.kind={kind} reads by windows; set it to full (--set)."
    elif LATENTS in data.train.columns:
        yield f"{data.train.origin} holds latents, from which each step draws; name images."


def left_out(experiment: Experiment) -> list[str]:
    """Return sentences on settings without which the file trains."""
    found = []
    if experiment.engine.compile:
        found.append("engine.compile is left out: bits are those of engine.compile=false.")
    if experiment.engine.zero.stage != 1:
        found.append(
            f"engine.zero.stage={experiment.engine.zero.stage} is 1 in the file: weights may "
            "differ in the last bits, since parameters lie elsewhere in memory."
        )
    if experiment.training.stop:
        found.append("training.stop is left out: all steps are done.")
    if experiment.evaluation.quality:
        found.append("evaluation.quality is left out: the file has the held-out metrics alone.")
    return found


def _selects_rows(experiment: Experiment) -> bool:
    mask = getattr(experiment.sampling, "mask", None)
    return getattr(mask, "kind", "random") != "random"


def _shown(experiment: Experiment, data: DataSplits) -> str:
    """Return what samples are to a person."""
    if data.text is not None:
        return "text"
    images = [each for each in experiment.model.batch_fields() if each.name == "image"]
    if images and ANY not in images[0].shape and min(images[0].shape[1:]) == 1:
        return "numbers"  # points of a plane
    return "images" if images else "numbers"


def class_numbers(column: StoredColumn, values: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of classes by their names, which are their numbers where they have
    none.
    """
    names = column.names or [*map(str, range(column.num_classes or 0))]
    return tuple(names.index(value) for value in values)


def stored_field(field: BatchField, column: StoredColumn) -> StoredField:
    """Return how a field is made of a column of the store."""
    if field.value_range is None or column.value_range is None:
        return field.name, field.dtype, None, 0.0
    low, high = column.value_range
    first, last = field.value_range
    ratio = (high - low) / (last - first)
    return field.name, field.dtype, ratio, first - low / ratio
