"""Commands of steps: what decides the result of each, whether the home has it already, and what it
made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from ditlab.cluster.session import cluster_address
from ditlab.data.importing import find_importer
from ditlab.data.splits import absent_data, open_data
from ditlab.data.stores.bucketed_store import holds_store, open_store
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.numerics import NUMERICS_VERSION
from ditlab.parts import OWN_FORMATS, export_formats, load_part
from ditlab.progress import ignore
from ditlab.receipts.reading import read_attempts
from ditlab.receipts.records import RecordedAttempt
from ditlab.runs.launch import checkpoint_store
from ditlab.runs.prepare import portable
from ditlab.spec.experiment import Experiment, content_of_data, is_content
from ditlab.spec.files import (
    is_sweep,
    load_experiment,
    load_recorded_experiment,
    resolve_paths,
    spec_name,
)
from ditlab.spec.overrides import changed_values
from ditlab.spec.resources import Resources
from ditlab.spec.sweep import Sweep, load_sweep
from ditlab.spec.sweep_space import check_sweep, differences, experiment_for, typical_values
from ditlab.spec.uris import is_uri
from ditlab.spec.values import format_value
from ditlab.storage.files import file_states, listing
from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.prepare import portable_sweep
from ditlab.tracking.history import JournalFacts, final_values, metric_history
from ditlab.tracking.journal import main_metric, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import RunRecord, list_runs
from ditlab_addons.steps.graph import Graph, GraphStep, load_graph
from ditlab_addons.steps.ledger import Ledger, Made, identity_of

Inputs = Mapping[str, Sequence[Made]]
"""Results of the steps that a step needs, by its field."""
REMARKED = ("engine", "resources", "evaluation", "sampling")
"""Sections that decide nothing of a training's identity, and may change bits or measured values."""
BEST = "ditlab.best."
"""Beginning of the tags of a sweep's run with the values of its best trial."""
NOT_DECISIVE = ("name", "engine", "resources", "checkpoint", "tracking")
"""Sections of a sweep's experiment that decide nothing of its identity."""
UNDECISIVE = ("processes", "address", "replace")
"""Options of imports and encodings that decide nothing of their store."""
OF_FILES = "files "
"""Beginning of a value that stands for files."""
ALL_CORES = 1 << 20
"""More than a machine has: nothing starts beside."""


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
    remark: Callable[[Made], str] = lambda made: ""
    """Function of the result that says what is not as the step's spec has it, and decides nothing
    of the result's identity."""
    cores: int = ALL_CORES
    """Cores of this machine that it computes on."""

    @cached_property
    def identity(self) -> str:
        """Hash of what decides the result."""
        return identity_of(self.content)


class Runs:
    """Runs of a home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.refresh()

    def refresh(self) -> None:
        """Read all records, the newest first."""
        self.records = list_runs(self.home)

    def attempts(self, made: Made) -> Collection[RecordedAttempt]:
        """Return the attempts of a run, of a run of a group, or of a sweep's best trial."""
        return read_attempts(self.home.run([made.run, *made.members][-1])).values()

    def is_made_of(self, made: Made, data: str) -> bool:
        """Return True for a result that was trained on data of a fingerprint; "" is any."""
        return not data or any(each.data == data for each in self.attempts(made))

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
        return Made(digest=found[1], run=run_id, step=found[0], metrics=metrics)

    def made_group(self, group: str) -> Made | None:
        """Return a group of seeds as a result; None where the weights of one are gone."""
        self.refresh()
        names = {each.run_id for each in self.records if each.group == group} - {group}
        members = sorted(names)
        made = [each for each in map(self.made, members) if each is not None]
        if not members or len(made) < len(members):
            return None
        digest = identity_of({"weights": sorted(each.digest for each in made)})
        return Made(digest=digest, run=group, members=tuple(members))

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
    if made.files:
        return file_states(made.files) == made.files
    store = Path(made.place)
    return not made.place or (holds_store(store) and made_store(store).digest == made.digest)


class TaskMaker:
    """Tasks of a graph's steps."""

    def __init__(self, graph: Graph, home: Home, options: Sequence[str] = ()) -> None:
        """`options`: options of every training and sweep, such as `--local`."""
        self.graph = graph
        self.home = home
        self.options = options
        self.on_cluster = "--local" not in options and cluster_address(None) is not None
        self.runs = Runs(home)
        self._contents: dict[Any, Any] = {}
        """Contents of finished runs, by run and data."""
        self.ledger = Ledger(home)

    def tasks(self, each: GraphStep, inputs: Inputs) -> list[Task]:
        """Return the commands of a step, in order. Raises UserError for a spec that is wrong."""
        make: Callable[[GraphStep, Inputs], Iterator[Task]] = getattr(self, f"_{each.kind}")
        return [*make(each, inputs)]

    def _data_digest(self, experiment: Experiment) -> str:
        """Return the fingerprint of an experiment's stores; "" for data that its spec decides, and
        for stores that are not here.
        """
        data = experiment.data
        if data.kind not in ("arrow", "mixture") or absent_data(data, self.home):
            return ""
        return open_data(data, self.home, verify=False, notify=ignore).fingerprint

    def _changes(self, each: GraphStep) -> dict[str, Any]:
        """Return the settings that a step changes, paths in them from the graph's folder on."""
        return resolve_paths(each.changes(), self.graph.folder)

    def _options(self, each: GraphStep) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a step's options, paths in them from the graph's folder on, and what of them
        decides its result: of files their names, sizes and times.
        """
        changes = each.changes()
        content: dict[str, Any] = {}
        for name, value in changes.items():
            content[f"set.{name}"] = value
            place = (self.graph.folder / str(value)).resolve()
            if is_uri(str(value)) or not (name in ("source", "out") or place.exists()):
                continue
            changes[name] = str(place)
            content[f"set.{name}"] = str(place) if name == "out" else listing(str(place))
        for name in UNDECISIVE:
            content.pop(f"set.{name}", None)
        return changes, content

    def _files_task(self, each: GraphStep, words: list[str], content: dict[str, Any]) -> Task:
        """Return the task of a command that writes files, into the folder that the step names."""
        if each.out:
            content["out"] = str((self.graph.folder / each.out).resolve())
            words += ["--out", content["out"]]
        return Task(tuple(words), content, read_files)

    def _import(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        kind = each.step.value("import")
        importer = find_importer(kind)
        changes, decisive_options = self._options(each)
        content = {"command": "import", "import": kind, **decisive_options}
        own = {"data.kind": kind} if importer.is_fixed or kind == "mnist" else {}

        def find() -> Made | None:
            folder = self.home.stores / kind
            if importer.is_fixed and holds_store(folder):
                return replace(made_store(folder), values=own)
            return None

        options = load_part("importer", kind, importer.options)
        if "name" in options.model_fields:  # of other data another store, which replaces none
            changes.setdefault("name", f"{each.name}-{identity_of(content)[:8]}")
        words = ("data", "import", kind, *flags(changes))
        yield Task(words, content, partial(read_store, own), find)

    def _encode(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        (store,) = inputs["encode"]
        changes, options = self._options(each)
        content = {"command": "encode", "store": store.digest, **options}
        changes.setdefault("name", f"{each.name}-{identity_of(content)[:8]}")
        words = ("data", "encode", store.place, *flags(changes))
        yield Task(words, content, partial(read_store, {}))

    def _train(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        path = self.graph.folder / each.step.value("train")
        changes = self._training_changes(each, path, inputs)
        experiment = portable(experiment_of(path, *settings(changes)), None, self.home)
        seeds = each.step.value("seeds")
        content = self._training_content(experiment, self._data_digest(experiment), seeds)
        arguments = ["train", str(path), *set_options(changes), "--resume", "auto"]
        if seeds > 1:
            arguments += ["--seeds", str(seeds)]
        yield Task(
            (*arguments, *self.options),
            content,
            partial(self._read_run, content, seeds),
            partial(self._find_run, experiment, content, seeds),
            partial(self._remark, experiment),
            self._cores(experiment.resources),
        )

    def _training_content(self, experiment: Experiment, data: str, seeds: int) -> dict[str, Any]:
        """Return what decides the weights of a training, or of a group of seeds, by path."""
        start = experiment.start
        begun = self.runs.weights(start.run, start.step) if start else None
        shown = {key: value for key, value in experiment.to_dict().items() if is_content(key)}
        shown.pop("start", None)
        shown["data"] = content_of_data(shown["data"])
        values = {path: value for path, value in flatten(shown).items() if not is_store(path)}
        return {
            "command": "train",
            "numerics": NUMERICS_VERSION,
            "weights": begun and begun[1],
            "state": start and start.state,
            "data": data,
            "seeds": seeds,
            **with_files(values),
        }

    def _cores(self, resources: Resources) -> int:
        """Return the cores of this machine that a training takes."""
        if self.on_cluster:
            return 0
        if resources.gpus_per_worker or not resources.cpus_per_worker:
            return ALL_CORES
        return resources.cpus_per_worker * resources.max_workers

    def _remark(self, experiment: Experiment, made: Made) -> str:
        """Say where a run that counts was made with other settings than the step's spec has."""
        run = made.members[0] if made.members else made.run
        recorded = load_recorded_experiment(self.home.run(run).spec).to_dict()
        wanted = experiment.to_dict()
        texts = [
            f"{path} {format_value(before)}, not {format_value(now)}"
            for name in REMARKED
            for path, before, now in changed_values(recorded[name], wanted[name], name)
        ]
        if any(text.startswith(("engine.", "resources.")) for text in texts):
            texts.append("its last bits may differ")
        return f"made with {'; '.join(texts)}" if texts else ""

    def _training_changes(self, each: GraphStep, path: Path, inputs: Inputs) -> dict[str, Any]:
        """Return the settings of a training by path: of a sweep, its own, data and start."""
        changes: dict[str, Any] = {}
        for sweep in inputs.get("settings-of", ()):
            changes |= sweep.values
        changes |= self._changes(each)
        changes |= self._data(path, inputs)
        for parent in inputs.get("weights-of", ()):
            recorded = load_recorded_experiment(self.home.run(parent.run).spec)
            state = "averaged" if recorded.training.ema else "trained"
            changes["start"] = {"run": parent.run, "step": parent.step, "state": state}
        return changes

    def _find_run(
        self, experiment: Experiment, content: Mapping[str, Any], seeds: int
    ) -> Made | None:
        """Return the newest finished run, or group of seeds, of an experiment. A spec that names
        files has none, as they may have changed since.
        """
        if any(str(value).startswith(OF_FILES) for value in content.values()):
            return None
        wanted = experiment.content_hash()
        for record in self.runs.records:
            is_alike = record.start if experiment.start else record.spec_hash == wanted
            is_done = record.status == "finished" and is_alike
            if is_done and record.trials == (0 if seeds == 1 else seeds):
                with suppress(UserError):
                    made = self._read_run(content, seeds, {"run_id": record.run_id})
                    if self.runs.is_made_of(made, content["data"]):
                        return made
        return None

    def _read_run(self, content: Mapping[str, Any], seeds: int, printed: Mapping[str, Any]) -> Made:
        """Return the run that a training printed. Raises UserError where it has no checkpoint, or
        was made of other content.
        """
        run = printed["run_id"]
        key = (run, content["data"])
        if key not in self._contents:
            recorded = load_recorded_experiment(self.home.run(run).spec)
            self._contents[key] = self._training_content(recorded, content["data"], seeds)
        if self._contents[key] != content:
            raise UserError(f"run {run} has another spec than this step: its file was changed.")
        made = self.runs.made(run) if seeds == 1 else self.runs.made_group(run)
        if made is None:
            raise UserError(f"run {run} has no checkpoint; set checkpoint.keep to 1 or more.")
        return made

    @staticmethod
    def _data(path: Path, inputs: Inputs) -> dict[str, Any]:
        """Return the settings by which a spec trains on the store of a step."""
        for store in inputs.get("data", ()):
            if kind_of_data(path) != store.values.get("data.kind"):
                return {"data.kind": "arrow", "data.path": store.place}
        return {}  # also for data that the spec names itself

    def _tune(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        path = self.graph.folder / each.step.value("tune")
        changes = self._changes(each)
        changes |= {f"fixed.{key}": value for key, value in self._data(path, inputs).items()}
        sweep = portable_sweep(load_sweep(path, settings(changes)), self.home)[0]
        shown = decisive(sweep).to_dict()
        shown.pop("name")
        shown.pop("budget", None)
        data = self._data_digest(experiment_for(sweep, typical_values(sweep)))
        content = {"command": "tune", "numerics": NUMERICS_VERSION, "data": data}

        def find() -> Made | None:
            for record in self.runs.records:
                if record.status == "finished" and self._is_same_sweep(record, sweep):
                    made = self.runs.made_by_sweep(record.run_id)
                    if made and self.runs.is_made_of(made, data):
                        return made
            return None

        def read(printed: Mapping[str, Any]) -> Made:
            made = self.runs.made_by_sweep(printed["run_id"])
            if made is None or printed["status"] != "finished":
                raise UserError(
                    f"sweep {printed['run_id']} has no best trial with a checkpoint, or its budget "
                    "ended it; raise the budget."
                )
            return made

        arguments = ("tune", str(path), *set_options(changes), "--resume", "auto")
        options = [option for option in self.options if option != "--local"]
        cores = 0 if self.on_cluster else ALL_CORES
        yield Task((*arguments, *options), content | flatten(shown), read, find, cores=cores)

    def _is_same_sweep(self, record: RunRecord, sweep: Sweep) -> bool:
        with suppress(UserError):
            stored = decisive(SweepFolder(self.home.run(record.run_id)).load_sweep())
            wanted = decisive(sweep)
            return not differences(stored, wanted) and not differences(wanted, stored)
        return False

    def _evaluate(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        quality = each.step.value("quality")
        changes = self._changes(each)
        options = flags({"quality": quality}) + set_options(changes)
        for run in self._single_runs(inputs["evaluate"]):
            content = {"command": "evaluate", "weights": run.digest, "quality": quality}
            content |= {"set": changes} | self._recorded(run, "evaluation", "sampling")
            arguments = ("evaluate", run.run, *options)
            yield Task(arguments, content, partial(read_evaluation, run))

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
        changes = self._changes(each)
        words = ["sample", run.run, *flags({"num": num}), *set_options(changes)]
        content = {"command": "sample", "weights": run.digest, "num": num}
        content |= {"set": changes} | self._recorded(run, "sampling")
        yield self._files_task(each, words, content)

    def _compare(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        runs = inputs["compare"]
        content = {"command": "compare", "weights": [run.digest for run in runs]}
        yield self._files_task(each, ["compare", *(run.run for run in runs)], content)

    def _export(self, each: GraphStep, inputs: Inputs) -> Iterator[Task]:
        (run,) = inputs["export"]
        form = each.step.value("format")
        words = ["export", run.run, "--format", form]
        content = {"command": "export", "weights": run.digest, "format": form}
        if not each.out:
            name = f"{each.name}-{identity_of(content)[:8]}"
            words += ["--out", str(self.home.root / "exports" / name)]
        yield self._files_task(each, words, content)

    def _recorded(self, run: Made, *sections: str) -> dict[str, Any]:
        """Return sections of a run's own spec, by path, and the version of the numbers."""
        spec = load_recorded_experiment(self.home.run(run.run).spec).to_dict()
        content = with_files(flatten({name: spec[name] for name in sections}))
        return content | {"numerics": NUMERICS_VERSION}


def load_checked_graph(path: Path, overrides: Sequence[str] = ()) -> Graph:
    """Load a graph, and the specs that its steps name. Raises UserError, naming file and field or
    step, for anything wrong in them."""
    graph = load_graph(path, overrides)
    for each in graph.steps.values():
        try:
            _check_spec(graph, each)
        except UserError as error:
            raise UserError(f"{spec_name(path)}: steps.{each.name}: {error}") from None
    return graph


def _check_spec(graph: Graph, each: GraphStep) -> None:
    """Load what a step names, with its own changes. Raises UserError."""
    if each.kind == "train":
        experiment_of(graph.folder / each.step.value("train"), *settings(each.changes()))
    elif each.kind == "tune":
        path = graph.folder / each.step.value("tune")
        check_sweep(load_sweep(path, settings(each.changes())), spec_name(path))
    elif each.kind == "import":
        find_importer(each.step.value("import"))
    elif each.kind == "export":
        form = each.step.value("format")
        known = [*OWN_FORMATS, *export_formats()]
        if form not in known:
            raise UserError(f"format={form} is unknown; {nearest(form, known)}")


def is_store(path: str) -> bool:
    """Return True for a field with the place of a store, whose fingerprint counts."""
    return path.startswith("data.") and path.endswith(".path")


def with_files(content: Mapping[str, str]) -> dict[str, str]:
    """Return values by path, with what their files are in the place of their paths."""
    return {
        key: OF_FILES + identity_of(listing(value))
        if value.startswith("/") and Path(value).exists()
        else value
        for key, value in content.items()
    }


def decisive(sweep: Sweep) -> Sweep:
    """Return a sweep without the sections of its experiment that decide nothing of its result."""

    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        names = [path for path in values if path.partition(".")[0] not in NOT_DECISIVE]
        return {path: values[path] for path in names if not is_store(path)}

    return sweep.model_copy(update={"base": kept(sweep.base), "fixed": kept(sweep.fixed)})


@cache
def experiment_of(path: Path, *overrides: str) -> Experiment:
    """Load an experiment; a leader forgets it before it starts the next step."""
    return load_experiment(path, overrides)


@cache
def kind_of_data(path: Path) -> str:
    """Return the kind of data that an experiment's or a sweep's file names."""
    if is_sweep(path):
        sweep = load_sweep(path)
        return experiment_for(sweep, typical_values(sweep)).data.kind
    return load_experiment(path).data.kind


def made_store(folder: Path) -> Made:
    """Return a store as a result."""
    with closing(open_store(folder, verify=False)) as store:
        return Made(digest=store.fingerprint, place=str(folder))


def read_store(values: Mapping[str, Any], printed: Mapping[str, Any]) -> Made:
    """Return the store, of several the first, that a command printed. `values`: those of specs that
    name it without a step.
    """
    store = printed["stores"][0]
    return Made(digest=store["fingerprint"], place=store["path"], values=values)


def read_evaluation(run: Made, printed: Mapping[str, Any]) -> Made:
    """Return the evaluation that was printed, the run's main metric first."""
    metrics = printed["metrics"]
    first = {name: metrics[name] for name in run.metrics if name in metrics}
    return Made(digest=printed["evaluation"], metrics=first | metrics)


def read_files(printed: Mapping[str, Any]) -> Made:
    """Return the files that were printed, which no step needs."""
    files = printed["files"]
    return Made(digest="", place=files[0], files=file_states(files))


def settings(changes: Mapping[str, Any]) -> list[str]:
    """Return changes as the texts of `--set`."""
    return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in changes.items()]


def set_options(changes: Mapping[str, Any]) -> list[str]:
    """Return changes as options of a command."""
    return [word for text in settings(changes) for word in ("--set", text)]


def flags(changes: Mapping[str, Any]) -> list[str]:
    """Return settings as a command's flags: `--max-span 3`, `--checksum`, `--no-checksum`; nothing
    for None.
    """
    words = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
