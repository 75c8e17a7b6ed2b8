"""Parts that folders, add-ons and other packages add to DiTLab, described without their code. No
torch.

A folder of DiTLab describes its parts in `parts.py`; an add-on, a folder `ditlab_addons/NAME/` on
the Python path, in `addon.py`; another package in an object that an entry point of the group
`ditlab.addons` names. A description names code as `module:attribute`, which is imported when it is
used.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from ditlab.errors import UserError, first_line
from ditlab.progress import ignore
from ditlab_models.plugins import Plugin, PluginGroup, PluginWarning, plugins_in_folders

OF_ADDONS: dict[str, dict[str, str]] = {
    "command": {
        "ask": "ask",
        "data encode": "encode",
        "compare": "compare",
        "data inspect": "inspection",
        "data rm": "housekeeping",
        "data statistics": "figures",
        "doctor": "doctor",
        "eject": "check",
        "make": "steps",
        "new": "starters",
        "plan": "plan",
        "profile": "plan",
        "prove": "check",
        "replay": "check",
        "runs adopt": "check",
        "runs query": "query",
        "runs rm": "housekeeping",
        "runs sync": "housekeeping",
        "verify": "check",
        "watch": "watch",
        "weights": "interop",
    },
    "export format": {"diffusers": "interop", "peft": "interop", "torch": "interop"},
    "importer": {"get": "genome"},
    "file's field": {"steps": "steps"},
    "field": {"evaluation.features": "figures", "evaluation.scorer": "figures"},
    "function": {
        "compare": "compare",
        "compare_file": "check",
        "eject": "check",
        "harness_model": "figures",
        "make": "steps",
        "plan_samples": "race",
        "prove": "check",
        "remove_runs": "housekeeping",
        "replay": "check",
        "sweep_samples": "race",
        "verify": "check",
    },
    "method": {"ask": "ask"},
    "optimizer": {"muon": "optimizers", "schedule_free_adamw": "optimizers"},
    "option": {"--notify": "notify", "--prove": "check", "--samples": "race", "--steps": "steps"},
    "order": {"interleaved": "streaming"},
    "schedule": {"inverse_sqrt": "optimizers"},
    "scheduler": {"race": "race"},
    "section": {"notify": "notify"},
    "sweep's base": {"run": "race"},
    "tracker": {"trackio": "trackers"},
    "weight format": {
        "diffusers_dit": "interop",
        "dit": "interop",
        "get": "interop",
        "sedd": "interop",
        "sit": "interop",
    },
}
"""Add-on of DiTLab by kind and name of its parts: what is said where the add-on is not here."""
OWN_FORMATS = ("ditlab", "safetensors")
"""Two names of DiTLab's own form of exports."""
NONE: Mapping[str, str] = MappingProxyType({})
_NOUNS = {
    "quality_figures": "quality figures",
    "run_methods": "method",
    "subcommands": "command",
    "sweep_sections": "section",
    "weight_formats": "weight format",
}
"""Nouns for the parts in a mapping of `Parts`; of others, the mapping's name without its s."""
LAST = 1000
"""Position of commands behind DiTLab's own."""


class Command(NamedTuple):
    """A command of `ditlab`."""

    name: str
    summary: str
    """Its line in `ditlab --help`."""
    target: str
    """The click command: `ditlab.cli.train.commands:train`."""
    examples: tuple[str, ...]
    """Command lines at the end of its help; a group's commands show those that name them."""
    position: int = LAST
    """Position in `ditlab --help`; commands of one position are sorted by name."""


class Importer(NamedTuple):
    """A kind of data of `ditlab data import`."""

    name: str
    options: str
    """Class of its options, whose fields are the flags of its command."""
    target: str
    """Function of a request (`ditlab.data.importing.ImportRequest`) that returns the store or
    stores it has written.
    """
    by_blocks: bool = False
    """True where a cluster can share the work (`ditlab.data.import_blocks`)."""
    has_dry_run: bool = False
    """True for one by blocks that takes the limit of a dry run (`ImportRequest.limit`)."""
    is_fixed: bool = False
    """True for data that never change, whose store's folder has its plain name."""
    library: str = ""
    """Library that it needs beyond those of DiTLab, which the extra of its name brings; empty for
    none.
    """


class StartCheck(NamedTuple):
    """A check before a run begins: the option `--NAME` of `ditlab train`, and the argument NAME of
    `ditlab.train`.
    """

    name: str
    help: str
    """Text of the option."""
    does: str
    """Clause on what it does, which `--dry-run` refuses: `trains a few steps`."""
    target: str
    """Function of (experiment, address of the cluster or None) that returns the check, as a
    function of a `StartSituation`: it returns a `ditlab.runs.launch.RecordedProof`, or raises
    `StartRefused`. The outer one raises UserError where the check cannot be made."""


class ExportFormat(NamedTuple):
    """A form of `ditlab export --format NAME`, beside DiTLab's own."""

    name: str
    help: str
    """Sentence of the option's help."""
    target: str
    """Function of (`ditlab.analysis.averages.ExportSource`, folder) that returns the files it has
    written.
    """
    merges_adapters: bool = True
    """True where adapters (`training.lora`) are merged into the weights."""


class SweepKind(NamedTuple):
    """A kind of sweeps that train nothing, known by a field of their `base` that no experiment
    has.
    """

    name: str
    """The field: `run` of `base: {run: RUN}`."""
    noun: str
    """Phrase for one of them: `sweep over samples`."""
    load: str
    """Function of (path of a file, values of `--set`) that returns its spec, checked: an object
    with `to_dict()`, and `describe()`, which returns a phrase on its size, `4 points`. It raises
    UserError."""
    target: str
    """Function of (path of a file or None, values of `--set`, value of `--resume` or None, whether
    it is a dry run, whether it prints JSON) that does the work of `ditlab tune` and returns the
    exit code. Such a sweep keeps its spec in `sweep.yaml` of its run's folder, by which `--resume`
    knows its kind, and its page in `report/report.html`."""


class FileKind(NamedTuple):
    """A kind of files beside experiments and sweeps, known by a field at their top that neither
    has.
    """

    name: str
    """The field: `steps`."""
    noun: str
    """Phrase for one of them: `graph of steps`."""
    command: str
    """Command that runs one: `make`."""
    load: str
    """Function of (path of a file, values of `--set`) that returns its spec, checked: an object
    with `name`, `to_dict()`, and `describe()`, which returns a phrase on its size, `8 steps`. It
    raises UserError."""
    page: str = ""
    """Function of (home, path of a file) that returns a function which makes the file's page anew
    (`ditlab.reports.page.Page`), for `ditlab watch FILE`; empty for none. It raises UserError."""


class CommandOption(NamedTuple):
    """A flag of a command that takes flags of add-ons: `schema`, `watch`."""

    command: str
    name: str
    """Name with its dashes: `--notify`."""
    help: str
    """Text of the option."""
    target: str
    """Function that the command calls where the flag is given. Of `watch`: a function of (folder of
    the run, function that prints a line), called before the page is served; it returns at once, or
    raises UserError. Of `schema`: a function without arguments that returns the schema, such as
    `ditlab.spec.schema.file_schema` makes."""

    @property
    def parameter(self) -> str:
        """Name of the command's argument."""
        return self.name.removeprefix("--").replace("-", "_")


class Parts(NamedTuple):
    """Parts of one folder or package."""

    commands: tuple[Command, ...] = ()
    results: str = ""
    """Types of the objects that its commands print under `--json`, by the command's words: a dict
    of a module. A type for a command of another part is one more that it may print."""
    subcommands: Mapping[str, str] = NONE
    """Click commands below `data` or `runs`, by all words: `{"data statistics":
    "module:attribute"}`; below any other group that is a `ditlab.cli.main.OpenGroup` too."""
    importers: tuple[Importer, ...] = ()
    functions: Mapping[str, str] = NONE
    """Names of `import ditlab`, with the function or class of each."""
    run_methods: Mapping[str, str] = NONE
    """Methods of `ditlab.Run` by name, with the function of each, whose first argument is the
    run.
    """
    start_checks: tuple[StartCheck, ...] = ()
    sweep_kinds: tuple[SweepKind, ...] = ()
    file_kinds: tuple[FileKind, ...] = ()
    options: tuple[CommandOption, ...] = ()
    weight_formats: Mapping[str, str] = NONE
    """Formats of published weights by name, with the `ditlab.weights.published.WeightsFormat` of
    each.
    """
    export_formats: tuple[ExportFormat, ...] = ()
    schedules: Mapping[str, str] = NONE
    """Kinds of `schedule`, the learning rate over time, with the
    `ditlab.spec.optimization.Schedule` of each.
    """
    orders: Mapping[str, str] = NONE
    """Kinds of `data.order`, which samples come when, with the `ditlab.spec.data.OrderSpec` of
    each.
    """
    sections: Mapping[str, str] = NONE
    """Sections of an experiment by name, with the `ditlab_models.contract.Spec` that has the
    section as its one field. A section decides nothing of the trained weights: it is no part of a
    spec's hash."""
    sweep_sections: Mapping[str, str] = NONE
    """Sections of a sweep, as `sections`."""
    run_observers: tuple[str, ...] = ()
    """Functions of (experiment, whether its run is resumed, function that warns), called before a
    run begins in the process that leads it. They return None, or a function of the
    `ditlab.runs.launch.Launch` that returns the `ditlab.runs.observers.RunObserver` of the run.
    They raise UserError where the run may not begin."""
    sweep_observers: tuple[str, ...] = ()
    """Functions of (sweep, whether it is resumed, function that warns), as `run_observers`, for a
    function of the `ditlab.sweeps.start.StartedSweep` and its `ditlab.sweeps.progress.SweepTrials`.
    """
    solvers: Mapping[str, str] = NONE
    """Solvers of `sampling.solver` by name, with the function of each, as in
    `ditlab_models.processes.solvers`: for families that integrate a velocity."""
    trackers: Mapping[str, str] = NONE
    """Schemes of addresses (`tracking.uri`) with the `ditlab.tracking.backend.TrackingBackend` of
    each.
    """
    removal_remarks: tuple[str, ...] = ()
    """Functions of (home, names of what is to be deleted: ids of runs, folders of stores), called
    before it is deleted. They return sentences on what needs it."""
    optimizers: Mapping[str, str] = NONE
    """Kinds of `optimizer` with the `ditlab.spec.optimization.Optimizer` of each."""
    schedulers: Mapping[str, str] = NONE
    """Kinds of `scheduler`, which says which trials of a sweep train on, with the
    `ditlab.spec.sweep.Scheduler` of each."""
    quality_figures: Mapping[str, str] = NONE
    """Further figures of drawn samples by name (of DiTLab's: the field that asks for them), with
    the `ditlab.quality.figures.QualityFigures` of each."""
    displays: Mapping[str, str] = NONE
    """Displays of a notebook: functions that return the HTML of an `experiment`, a `sweep`, a
    `run`, a list of `runs` or a training's `result`, and `progress`: a function that returns the
    bar of a training, with `stage`, `update` and `close`, or None outside of a notebook."""
    observers: tuple[str, ...] = ()
    """Functions of (`ditlab.runs.launch.Launch`, `ditlab.engine.distributed.Rank`) that return the
    `ditlab.training.hooks.StepHook` of a worker, or None where nothing is observed. Each worker
    calls them as a run begins or goes on. A hook that packs numbers is one of every worker."""


_log = logging.getLogger("ditlab")
PartT = TypeVar("PartT", Command, Importer, StartCheck, SweepKind, CommandOption, ExportFormat)


def _addon_folders(only: str | None = None) -> Iterator[Plugin]:
    try:
        import ditlab_addons
    except ModuleNotFoundError:
        return iter(())
    return plugins_in_folders(ditlab_addons, "addon", "ADDON", only)


def _check(name: str, parts: Any) -> Parts:
    if not isinstance(parts, Parts):
        raise ValueError(f"it is a {type(parts).__name__}, not an instance of ditlab.parts.Parts")
    return parts


ADDONS: PluginGroup[Parts] = PluginGroup("ditlab.addons", "add-on", _check, folders=_addon_folders)


@cache
def core_parts() -> tuple[Parts, ...]:
    """Return the parts of DiTLab's own folders."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("cli/*/parts.py"))
    return tuple(importlib.import_module(f"ditlab.cli.{folder}.parts").PARTS for folder in folders)


def all_parts() -> list[Parts]:
    """Return the parts of DiTLab's own folders, then those of add-ons and other packages.

    Warns of add-ons that cannot be used.
    """
    return [*core_parts(), *ADDONS.load_all().values()]


def commands() -> dict[str, Command]:
    """Return all commands by name, as `ditlab --help` lists them. Warns of those whose name is
    taken.
    """
    found = _described("command", listed("commands"))
    return dict(sorted(found.items(), key=lambda item: (item[1].position, item[0])))


def find_command(name: str) -> Command | None:
    """Return the command of a name; None where there is none."""
    own = {command.name: command for parts in core_parts() for command in parts.commands}
    return own.get(name) or commands().get(name)


def importers() -> dict[str, Importer]:
    """Return all importers by name, sorted. Warns of those whose name is taken."""
    return dict(sorted(_described("importer", listed("importers")).items()))


def named(field: str) -> dict[str, str]:
    """Return what stands in a mapping of all `Parts`, such as `solvers`: the place of each by name.

    Warns of those whose name is taken.
    """
    offers = [offer for parts in all_parts() for offer in getattr(parts, field).items()]
    return _first(_NOUNS.get(field, field.removesuffix("s")), offers)


def listed(field: str) -> list[Any]:
    """Return what stands in a tuple of all `Parts`, such as `commands`."""
    return [part for parts in all_parts() for part in getattr(parts, field)]


def places(field: str) -> list[str]:
    """Return the places in a tuple of all `Parts`, such as `observers`."""
    return listed(field)


def start_checks() -> dict[str, StartCheck]:
    """Return all checks before a run begins by name, sorted. Warns of those whose name is taken."""
    return dict(sorted(_described("start check", listed("start_checks")).items()))


def sweep_kinds() -> dict[str, SweepKind]:
    """Return all kinds of sweeps that train nothing by the field of `base`. Warns of those whose
    field is taken.
    """
    return _described("sweep's base", listed("sweep_kinds"))


def file_kinds() -> dict[str, FileKind]:
    """Return all kinds of files beside experiments and sweeps by the field at their top. Warns of
    those whose field is taken.
    """
    found = _first("file's field", [(kind.name, kind.load) for kind in listed("file_kinds")])
    return {kind.name: kind for kind in listed("file_kinds") if found[kind.name] == kind.load}


def command_options(command: str) -> dict[str, CommandOption]:
    """Return the flags of add-ons for a command by name, sorted. Warns of those whose name is
    taken.
    """
    found = [option for option in listed("options") if option.command == command]
    return dict(sorted(_described("option", found).items()))


def export_formats() -> dict[str, ExportFormat]:
    """Return the forms of exports beside DiTLab's own by name. Warns of those whose name is
    taken.
    """
    return _described("export format", listed("export_formats"))


def find_kind(section: str, kind: str) -> Plugin | None:
    """Return what brings a kind of `schedule`, `optimizer` or `order`, or a `solver`; None where
    nothing does.
    """
    names = (
        name for name, addon in ADDONS.load_all().items() if kind in getattr(addon, f"{section}s")
    )
    return next(map(ADDONS.find, names), None)


def load_part(noun: str, name: str, target: str) -> Any:
    """Import the code of a part. Raises UserError where that of an add-on or another package cannot
    be used.
    """
    try:
        return resolve_name(target)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        if target.startswith("ditlab."):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(
            f"the {noun} '{name}' ({target}) cannot be used ({reason}); repair, update or "
            "remove what brings it."
        ) from error


def find_display(noun: str) -> Callable[..., Any]:
    """Return the function that shows a thing in a notebook (`Parts.displays`), one that gives None
    where there is none.

    Raises UserError where its code cannot be used.
    """
    target = named("displays").get(noun)
    if target:
        return load_part("display", noun, target)
    return ignore


def display_html(thing: object, noun: str) -> str | None:
    """Return a thing as HTML; None where nothing shows it, or that fails: a notebook then shows its
    `repr`.
    """
    try:
        return find_display(noun)(thing)
    except Exception as error:  # a display must not break the cell that it follows
        _log.debug(
            "%s cannot be shown as HTML (%s: %s)", type(thing).__name__, type(error).__name__, error
        )
        return None


def absent_part(noun: str, name: str) -> str:
    """Return a sentence on a part (`command`, `ask`) of an add-on of DiTLab that is not here; ""
    for any other name.
    """
    addon = OF_ADDONS[noun].get(name)
    if addon is None or ADDONS.find(addon):
        return ""
    return (
        f"the {noun} '{name}' is of the add-on {addon}, which is not here; put the folder that "
        f"holds ditlab_addons/{addon} on the Python path, or install DiTLab with its add-ons."
    )


def _described(noun: str, parts: Sequence[PartT]) -> dict[str, PartT]:
    kept = _first(noun, [(part.name, part.target) for part in parts])
    return {part.name: part for part in parts if kept[part.name] == part.target}


def _first(noun: str, offers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the first place of each name. Warns of others."""
    found: dict[str, str] = {}
    for name, target in offers:
        if found.setdefault(name, target) != target:
            text = (
                f"the {noun} '{name}' of {target} is skipped, as {found[name]} has that name; "
                "rename it."
            )
            warnings.warn(text, PluginWarning, stacklevel=4)
    return found
