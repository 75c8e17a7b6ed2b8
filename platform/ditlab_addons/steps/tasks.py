"""Commands of steps: what decides the result of each, whether the home has it already, and what it
made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ditlab.data.importing import find_importer
from ditlab.data.named_stores import store_folder
from ditlab.data.stores.bucketed_store import holds_store, open_store
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.numerics import NUMERICS_VERSION
from ditlab.runs.launch import checkpoint_store
from ditlab.runs.prepare import portable
from ditlab.spec.experiment import Experiment, class_for, is_content
from ditlab.spec.files import (
    build_experiment,
    is_sweep,
    load_experiment,
    load_recorded_experiment,
    read_with_parents,
    resolve_paths,
    spec_name,
)
from ditlab.spec.overrides import Assignment, assign
from ditlab.spec.start import Start, parse_start
from ditlab.spec.sweep import Sweep, load_sweep
from ditlab.spec.sweep_space import differences, experiment_for, typical_values
from ditlab.spec.uris import is_uri
from ditlab.spec.values import format_value
from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.prepare import portable_sweep
from ditlab.tracking.history import JournalFacts, final_values, metric_history
from ditlab.tracking.journal import main_metric, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import RunRecord, UnreadableRecord, read_record
from ditlab_addons.steps.graph import Graph, GraphStep
from ditlab_addons.steps.ledger import Ledger, Made, identity_of

Inputs = Mapping[str, Sequence[Made]]
"""Results of the steps that a step needs, by its field."""
BEST = "ditlab.best."
"""Beginning of the tags of a sweep's run with the values of its best trial."""


@dataclass(frozen=True)
class Task:
    """A command of a step."""

    arguments: tuple[str, ...]
    """Words behind `ditlab`."""
    content: Mapping[str, Any]
    """Plain values, by path, that decide the result."""
    read: Callable[[Mapping[str, Any]], Made]
    """Function of the object that the command prints, which returns the result."""
    find: Callable[[], Made | None] = lambda: None
    """Function that looks for a result that somebody has made by hand."""

    @cached_property
    def identity(self) -> str:
        """Hash of what decides the result."""
        return identity_of(self.content)


class Runs:
    """Runs of a home, each read until it has ended."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._known: dict[str, RunRecord] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the records that are new or may have changed."""
        with suppress(FileNotFoundError):
            names = {each.name for each in os.scandir(self.home.runs) if each.is_dir()}
            for name in names:
                known = self._known.get(name)
                if known is None or known.status != "finished":
                    with suppress(UnreadableRecord):
                        self._known[name] = read_record(self.home.run(name))
            self._known = {name: self._known[name] for name in names & self._known.keys()}

    @property
    def records(self) -> list[RunRecord]:
        """All readable records, the newest first."""
        return sorted(self._known.values(), key=lambda each: each.created, reverse=True)

    def finished(self, experiment: Experiment) -> Iterator[RunRecord]:
        """Yield the finished runs of an experiment, of whatever start, the newest first."""
        wanted = without_start(experiment).content_hash()
        for record in self.records:
            is_run = not record.trials or record.is_group
            is_alike = is_run and bool(record.start) == (experiment.start is not None)
            if record.status == "finished" and is_alike and self._hash(record) == wanted:
                yield record

    def _hash(self, record: RunRecord) -> str:
        """Return the hash of a run's spec, without its start."""
        if not record.start:
            return record.spec_hash
        recorded = load_recorded_experiment(self.home.run(record.run_id).spec)
        return without_start(recorded).content_hash()

    def weights(self, run_id: str, step: int | None = None) -> tuple[int, str, int] | None:
        """Return step, hash and version of numerics of a run's checkpoint (None: its last); None
        where it is gone.
        """
        folder = self.home.run(run_id)
        with suppress(UserError, OSError):
            spec = load_recorded_experiment(folder.spec)
            store = checkpoint_store(folder, spec.checkpoint.storage)
            found = store.last_step() if step is None else step
            with store.open(found, verify=False) as reader:
                manifest = reader.manifest
            return found, manifest.state_digest(), manifest.numerics
        return None

    def made(self, run_id: str) -> Made | None:
        """Return a run as a result; None where its weights are gone or of other numerics."""
        found = self.weights(run_id)
        if found is None or found[2] != NUMERICS_VERSION:
            return None
        folder = self.home.run(run_id)
        name = main_metric(folder)
        values = final_values(metric_history(folder))
        metrics = {name: values[name]} if name in values else {}
        return Made(digest=found[1], run=run_id, step=found[0], place=run_id, metrics=metrics)

    def made_group(self, group: str) -> Made | None:
        """Return a group of seeds as a result; None where the weights of one are gone."""
        self.refresh()
        alike = [each for each in self.records if each.group == group]
        members = sorted(each.run_id for each in alike if each.run_id != group)
        made = [self.made(member) for member in members]
        digests = [each.digest for each in made if each is not None]
        if not made or len(digests) < len(made):
            return None
        digest = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
        return Made(digest=digest, run=group, members=tuple(members), place=group)

    def made_by_sweep(self, sweep_id: str) -> Made | None:
        """Return a finished sweep as a result: its best trial; None where there is none."""
        tags = JournalFacts.of(read_content(self.home.run(sweep_id).journal)).tags
        best = self.made(tags.get("ditlab.best_run", ""))
        if best is None:
            return None
        values = {
            name.removeprefix(BEST): json.loads(value)
            for name, value in tags.items()
            if name.startswith(BEST)
        }
        return replace(best, place=sweep_id, values=values)


def is_there(made: Made, runs: Runs) -> bool:
    """Return True where a result that was made before is still there."""
    if made.members:
        return all(runs.weights(member) for member in made.members)
    if made.run:
        found = runs.weights(made.run)
        return found is not None and found[1] == made.digest
    return not made.place or Path(made.place).exists()


class TaskMaker:
    """Tasks of a graph's steps."""

    def __init__(self, graph: Graph, home: Home, options: Sequence[str] = ()) -> None:
        """`options`: options of every training and sweep, such as `--local`."""
        self.graph = graph
        self.home = home
        self.options = tuple(options)
        self.runs = Runs(home)
        self.ledger = Ledger(home)
        self._kinds_of_data: dict[Path, str] = {}

    def look_again(self) -> None:
        """Read the runs that another process may have made meanwhile."""
        self.runs.refresh()

    def tasks(self, each: GraphStep, inputs: Inputs) -> list[Task]:
        """Return the commands of a step, in order. Raises UserError for a spec that is wrong."""
        makers: dict[str, Callable[[GraphStep, Inputs], Iterator[Task]]] = {
            "import": self._import,
            "encode": self._encode,
            "train": self._train,
            "tune": self._tune,
            "evaluate": self._evaluate,
            "sample": self._sample,
            "compare": self._compare,
            "export": self._export,
        }
        return [*makers[each.kind](each, inputs)]

    def _path(self, name: str) -> Path:
        return self.graph.folder / name

    def _import(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        kind = each.step.value("import")
        importer = find_importer(kind)
        changes = each.changes()
        source = changes.get("source")
        listed = None
        if isinstance(source, str) and not is_uri(source):
            changes["source"] = str(self._path(source))
            listed = listing_digest(self._path(source))

        def find() -> Made | None:
            folder = self.home.stores / kind
            if importer.is_fixed and holds_store(folder):
                return made_store(folder)
            return None

        content = {"kind": "import", "import": kind, "source": listed, **options_content(changes)}
        yield Task(("data", "import", kind, *flags(changes)), content, read_store, find)

    def _encode(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        (store,) = inputs["encode"]
        changes = each.changes()
        content = {"kind": "encode", "store": store.digest, **options_content(changes)}
        yield Task(("data", "encode", store.place, *flags(changes)), content, read_store)

    def _train(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        path = self._path(each.step.value("train"))
        changes = self._training_changes(each, path, inputs)
        experiment = portable(changed_experiment(path, changes), None, self.home)
        seeds = each.step.value("seeds")
        content = {
            "kind": "train",
            "hash": without_start(experiment).content_hash(),
            "numerics": NUMERICS_VERSION,
            "weights": [parent.digest for parent in inputs.get("weights-of", ())],
            "state": experiment.start and experiment.start.state,
            "data": data_digest(experiment, self.home),
            "seeds": seeds,
        }
        shown = {key: value for key, value in experiment.to_dict().items() if is_content(key)}
        shown.pop("start", None)
        arguments = ["train", str(path), *set_options(settings(changes)), "--resume", "auto"]
        if seeds > 1:
            arguments += ["--seeds", str(seeds)]
        yield Task(
            (*arguments, *self.options),
            content | flatten(shown),
            partial(self._read_run, seeds),
            partial(self._find_run, experiment, seeds, inputs),
        )

    def _training_changes(self, each: GraphStep, path: Path, inputs: Inputs) -> dict[str, Any]:
        """Return the settings of a training by path: of a sweep, its own, data and start."""
        changes: dict[str, Any] = {}
        for sweep in inputs.get("settings-of", ()):
            changes |= sweep.values
        changes |= each.changes()
        changes |= self._data(path, inputs)
        for parent in inputs.get("weights-of", ()):
            recorded = load_recorded_experiment(self.home.run(parent.run).spec)
            start = Start(
                run=parent.run,
                step=parent.step,
                state="averaged" if recorded.training.ema else "trained",
            )
            changes["start"] = start.model_dump()
        return changes

    def _find_run(self, experiment: Experiment, seeds: int, inputs: Inputs) -> Made | None:
        """Return the newest finished run, or group of seeds, of an experiment."""
        for record in self.runs.finished(experiment):
            is_wanted = record.trials == (0 if seeds == 1 else seeds)
            if is_wanted and self._begins_alike(record, inputs):
                made = self._made_run(record.run_id, seeds)
                if made is not None:
                    return made
        return None

    def _made_run(self, run: str, seeds: int) -> Made | None:
        return self.runs.made(run) if seeds == 1 else self.runs.made_group(run)

    def _read_run(self, seeds: int, printed: Mapping[str, Any]) -> Made:
        """Return the run that a training printed. Raises UserError where it has no checkpoint."""
        run = printed["run_id"]
        made = self._made_run(run, seeds)
        if made is None:
            raise UserError(f"run {run} has no checkpoint; set checkpoint.keep to 1 or more.")
        return made

    def _begins_alike(self, record: RunRecord, inputs: Inputs) -> bool:
        """Return True for a run that began from the same weights."""
        wanted = [parent.digest for parent in inputs.get("weights-of", ())]
        if not record.start:
            return not wanted
        start = parse_start(record.start)
        found = self.runs.weights(start.run, start.step)
        return found is not None and wanted == [found[1]]

    def _data(self, path: Path, inputs: Inputs) -> dict[str, Any]:
        """Return the settings by which a spec trains on the store of a step. Raises UserError for
        a spec of other data.
        """
        changes: dict[str, Any] = {}
        for store in inputs.get("data", ()):
            changes["data.kind"] = "arrow"
            changes["data.path"] = store.place
            if self._kind_of_data(path) == Path(store.place).name:
                changes = {}  # data of a fixed name, which the spec names itself
        return changes

    def _kind_of_data(self, path: Path) -> str:
        """Return the kind of data that an experiment's or a sweep's file names."""
        if path not in self._kinds_of_data:
            if is_sweep(path):
                sweep = load_sweep(path)
                experiment = experiment_for(sweep, typical_values(sweep))
            else:
                experiment = load_experiment(path)
            self._kinds_of_data[path] = experiment.data.kind
        return self._kinds_of_data[path]

    def _tune(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        path = self._path(each.step.value("tune"))
        changes = each.changes()
        changes |= {f"fixed.{key}": value for key, value in self._data(path, inputs).items()}
        overrides = settings(changes)
        sweep = portable_sweep(load_sweep(path, overrides), self.home)[0]
        shown = sweep.to_dict()
        for name in ("name", "budget"):
            shown.pop(name, None)
        content = {"kind": "tune", "numerics": NUMERICS_VERSION}

        def find() -> Made | None:
            for record in self.runs.records:
                is_done = record.trials and not record.is_group and record.status == "finished"
                if is_done and self._is_same_sweep(record, sweep):
                    return self.runs.made_by_sweep(record.run_id)
            return None

        def read(printed: Mapping[str, Any]) -> Made:
            made = self.runs.made_by_sweep(printed["run_id"])
            if made is None:
                raise UserError(f"sweep {printed['run_id']} has no best trial with a checkpoint.")
            return made

        arguments = ("tune", str(path), *set_options(overrides), "--resume", "auto")
        options = [option for option in self.options if option != "--local"]
        yield Task((*arguments, *options), content | flatten(shown), read, find)

    def _is_same_sweep(self, record: RunRecord, sweep: Sweep) -> bool:
        with suppress(UserError):
            stored = SweepFolder(self.home.run(record.run_id)).load_sweep()
            return not differences(stored, sweep) and not differences(sweep, stored)
        return False

    def _evaluate(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        quality = each.step.value("quality")
        overrides = settings(each.changes())
        options = [] if quality is None else ["--quality", str(quality)]
        for run in self._single_runs(inputs["evaluate"]):
            content = {"kind": "evaluate", "weights": run.digest, "quality": quality}
            content |= options_content(each.changes()) | {"numerics": NUMERICS_VERSION}
            arguments = ("evaluate", run.run, *options, *set_options(overrides))
            yield Task(arguments, content, partial(read_evaluation, self.home))

    def _single_runs(self, results: Sequence[Made]) -> Iterator[Made]:
        """Yield runs, each of a group of seeds."""
        for each in results:
            if each.members:
                yield from filter(None, map(self.runs.made, each.members))
            else:
                yield each

    def _sample(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        (run,) = inputs["sample"]
        num = each.step.value("num")
        overrides = settings(each.changes())
        options = [] if num is None else ["--num", str(num)]
        content = {"kind": "sample", "weights": run.digest, "num": num}
        content |= options_content(each.changes()) | {"numerics": NUMERICS_VERSION}
        yield Task(("sample", run.run, *options, *set_options(overrides)), content, read_files)

    def _compare(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        runs = inputs["compare"]
        content = {"kind": "compare", "weights": [run.digest for run in runs]}
        yield Task(("compare", *(run.run for run in runs)), content, read_files)

    def _export(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        (run,) = inputs["export"]
        form = each.step.value("format")
        content = {"kind": "export", "weights": run.digest, "format": form}
        out = self.home.root / "exports" / f"{each.name}-{identity_of(content)[:8]}"
        arguments = ("export", run.run, "--format", form, "--out", str(out))
        yield Task(arguments, content, read_files)


def listing_digest(source: Path) -> str:
    """Return a hash over the names, sizes and times of a source's files. Raises UserError for a
    source that is not there.
    """
    if not source.exists():
        raise UserError(f"source={source} is not there; correct it.")
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    found = hashlib.sha256()
    for file in files:
        about = file.stat()
        found.update(f"{file.relative_to(source)}/{about.st_size}/{about.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def data_digest(experiment: Experiment, home: Home) -> str:
    """Return the fingerprint of the store that an experiment names by a path; "" for other data."""
    path = getattr(experiment.data, "path", None)
    if not isinstance(path, str) or is_uri(path):
        return ""
    return made_store(store_folder(path, home)).digest


def made_store(folder: Path) -> Made:
    """Return a store as a result."""
    store = open_store(folder, verify=False)
    made = Made(digest=store.fingerprint, place=str(folder))
    store.close()
    return made


def read_store(printed: Mapping[str, Any]) -> Made:
    """Return the store that an import or an encoding printed. Raises UserError for several."""
    stores = printed["stores"]
    if len(stores) != 1:
        names = ", ".join(each["name"] for each in stores)
        raise UserError(f"the import wrote {len(stores)} stores ({names}), and a step has one.")
    return Made(digest=stores[0]["fingerprint"], place=stores[0]["path"])


def read_evaluation(home: Home, printed: Mapping[str, Any]) -> Made:
    """Return the evaluation that was printed, the run's main metric first."""
    metrics = printed["metrics"]
    name = main_metric(home.run(printed["run_id"]))
    first = {name: metrics[name]} if name in metrics else {}
    return Made(digest=printed["evaluation"], metrics=first | metrics)


def read_files(printed: Mapping[str, Any]) -> Made:
    """Return the files that were printed, by the hash of all."""
    files = [Path(file) for file in printed["files"]]
    found = hashlib.sha256()
    for file in files:
        found.update(hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b"folder")
    return Made(digest=found.hexdigest(), place=str(files[0]) if files else "")


def changed_experiment(path: Path, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a file with other values by path, as `--set` gives them. Raises
    UserError.
    """
    given = [
        Assignment(field, value, f"set {field}={format_value(value)}")
        for field, value in changes.items()
    ]
    mapping = assign(read_with_parents(path), given, class_for)
    return build_experiment(resolve_paths(mapping, Path()), spec_name(path))


def without_start(experiment: Experiment) -> Experiment:
    """Return an experiment that begins from nothing."""
    return experiment.replace("start", None) if experiment.start else experiment


def settings(changes: Mapping[str, Any]) -> list[str]:
    """Return changes as the texts of `--set`."""
    return [f"{path}={json.dumps(value)}" for path, value in changes.items()]


def set_options(overrides: Sequence[str]) -> list[str]:
    """Return texts of `--set` with the option before each."""
    return [word for text in overrides for word in ("--set", text)]


def flags(changes: Mapping[str, Any]) -> list[str]:
    """Return settings as a command's flags: `--max-span 3`, `--checksum`, `--no-checksum`."""
    words = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def options_content(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as part of what decides a result."""
    return {f"set.{path}": value for path, value in changes.items()}
