"""Report of a sweep: one page as HTML and Markdown, with its figures, their alternative texts, and
a summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ditlab.reports.formatting import (
    Cell,
    Cells,
    describe_value,
    format_duration,
    format_number,
    is_numeric,
    listed,
    short_names,
    shorten,
)
from ditlab.reports.page import (
    Code,
    ImageFile,
    Page,
    Paragraphs,
    Part,
    Section,
    Table,
    write_html,
    write_markdown,
)
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_axes import (
    METHOD,
    MIN_TRIALS,
    Importance,
    can_name_axes,
    ended_with_value,
    importance,
    plot_axis,
    why_no_axis,
)
from ditlab.reports.sweep_differences import (
    ConfigurationDifference,
    difference_sentence,
    differences_to_best,
    fewer_seeds_sentences,
    mean_interval,
    not_significantly_different,
)
from ditlab.reports.sweep_figures import (
    CURVES_CAPTION,
    EFFECTS_CAPTION,
    curves_figure,
    effects_figure,
    objective_caption,
    objective_figure,
)
from ditlab.reports.sweep_records import (
    SweepSummary,
    Trial,
    best,
    better,
    device_hours,
    objectives,
    pareto,
    rank,
    steps_sentence,
    value_step,
    why_incomparable,
)
from ditlab_models.figures import Figure

_NOTE_CHARACTERS = 600
_VALUE_CHARACTERS = 120
_CLOSE = 0.01
"""Relative distance within which another seed would often change the order."""
_SETTING_CHARACTERS = 60
_SETTINGS = 6
_RANKING_COLUMNS = ("run", "status", "step", "seeds", "to the best", "time", "Pareto")
"""Columns of the ranking beside numbers, metrics and axes."""


def write_sweep_report(
    summary: SweepSummary,
    folder: Path,
    best_spec: str,
    resume_command: str,
    samples: ImageFile | Code | None = None,
    own: Sequence[Section] = (),
) -> list[Path]:
    """Write `report.html`, `report.md` and their pictures into `folder`; return the files in this
    order.

    `best_spec` is the YAML of `best(summary)`, empty where there is none; `resume_command` resumes
    the sweep; `samples` are those of all trials; `own` are sections of an add-on's sweep, with its
    pictures. Files are replaced atomically, the pages last. Raises OSError where the disk refuses.
    """
    known = importance(summary)
    first = best(summary)
    pictures: list[Path] = []
    unit = summary.unit
    curves_caption = CURVES_CAPTION
    if unit == "configuration":
        curves_caption += " With several seeds a line is a configuration: the mean over its seeds."

    def picture(name: str, figure: Figure | None, caption: str) -> list[Part]:
        if figure is None:
            # an earlier report's would not belong to this page
            (folder / name).unlink(missing_ok=True)
            return []
        pictures.append(save_figure(figure, folder / name))
        return [ImageFile(pictures[-1], caption)]

    effects = picture("effects.png", effects_figure(summary, known), EFFECTS_CAPTION)
    taken = (unit, *_RANKING_COLUMNS, *summary.metrics)
    heads = short_names((axis.path for axis in summary.axes), taken)
    sections = [
        Section("Conclusions", [*map(Paragraphs, conclusions(summary))]),
        _ranking(summary, heads),
        *own,
    ]
    given = [samples, *chain.from_iterable(section.parts for section in own)]
    pictures += [part.path for part in given if isinstance(part, ImageFile)]
    if samples:
        sections.append(Section(f"Samples of all {unit}s", [samples]))
    sections += [
        Section("The best spec", _best_spec(first, unit, best_spec)),
        Section("What mattered", [*_importance(known), *effects]),
        Section(
            "Progress",
            picture("objective.png", objective_figure(summary), objective_caption(summary)),
        ),
        Section("Learning curves", picture("curves.png", curves_figure(summary), curves_caption)),
        _notes(summary),
        _how(summary, heads, resume_command),
    ]
    shown = [section for section in sections if section.parts]
    page = Page(
        f"Sweep: {summary.name}",
        summary_text(summary, {path: each.spread for path, each in known.items()}),
        shown,
    )
    return [
        write_html(page, folder / "report.html"),
        write_markdown(page, folder / "report.md"),
        *pictures,
    ]


def _importance(found: Mapping[str, Importance]) -> list[Part]:
    rows: list[Cells] = [
        [path, round(each.spread), round(each.by_chance), each.best] for path, each in found.items()
    ]
    if rows:
        return [Table(["axis", "spread of ranks", "by chance", "best values"], rows, METHOD)]
    return []


def _best_spec(first: Trial | None, unit: str, spec: str) -> list[Part]:
    if first is None or not spec.strip():
        return []
    what = f"The whole spec of {unit} {first.number}"
    if first.status != "finished":
        what += f", which is {first.status} at step {first.step:,}"
    text = f"{what}. Saved as best.yaml, it is trained again with:"
    return [Paragraphs(text), Code("ditlab train best.yaml", "shell"), Code(spec, "yaml")]


def _ranking(summary: SweepSummary, names: Mapping[str, str]) -> Section:
    compared = differences_to_best(summary)
    differences = {each.configuration.number: each.interval for each in compared}
    columns = [summary.unit, "run", "status", "step", *summary.metrics]
    extra: dict[str, Mapping[int, Cell]] = {}
    if summary.num_seeds > 1:
        extra["seeds"] = {trial.number: len(trial.by_seed) for trial in summary.trials}
    if differences:
        extra["to the best"] = {
            number: each.text(is_signed=True) for number, each in differences.items()
        }
    if len(summary.metrics) > 1:
        extra["Pareto"] = dict.fromkeys((trial.number for trial in pareto(summary)), "yes")
    rows: list[Cells] = []
    for trial in rank(summary):
        row: Cells = [trial.number, trial.run_id, trial.status, value_step(summary, trial)]
        row += [_value(summary, trial, name) for name in summary.metrics]
        row += [cells.get(trial.number) for cells in extra.values()]
        row += [_axis_cell(trial.values.get(axis.path)) for axis in summary.axes]
        row.append(format_duration(trial.seconds) if trial.seconds else None)
        rows.append(row)
    caption = _ranking_caption(summary, compared)
    return Section("Ranking", [Table([*columns, *extra, *names.values(), "time"], rows, caption)])


def _axis_cell(value: Any) -> Cell:
    if value is None or is_numeric([value]):
        return value
    return shorten(describe_value(value), _VALUE_CHARACTERS)


def _ranking_caption(summary: SweepSummary, differences: Sequence[ConfigurationDifference]) -> str:
    caption = (
        f"Best first: finished {summary.unit}s, then those stopped early, interrupted and "
        f"running, each by {summary.goals[0]}; of several metrics inside a front of the "
        f"non-dominated sorting. The step is that of {summary.metrics[0]}. An empty cell: not "
        "used, or not known. "
        f"{why_incomparable(summary)}"
    )
    if summary.num_seeds > 1:
        caption += (
            " A configuration's values are means over its seeds, with half the 95 % interval "
            "of this mean by itself; its run is the first of them."
        )
    if differences:
        confidence = 100 * differences[0].interval.confidence
        caption += (
            " To the best: the configuration's value minus the best configuration's, with half "
            f"the interval; all these intervals hold together with {confidence:.4g} % "
            f"(Tukey's method). {_pairing(summary)}"
        )
    far = [each.configuration.number for each in differences if each.far_seeds]
    if far:
        caption += (
            f"Seeds far from the others decide the intervals of: {listed(far, 8)}; the other "
            "configurations may lack such seeds by chance."
        )
    return caption


def _value(summary: SweepSummary, trial: Trial, name: str) -> Cell:
    """A metric's cell: the value, of a configuration of several seeds with half the interval of its
    mean.
    """
    value = trial.metrics.get(name)
    if value is None or summary.num_seeds < 2 or not trial.by_seed:
        return value
    half = mean_interval(trial, name).text().partition(" +- ")[2]
    if half:
        return f"{format_number(value)} +- {half}"
    return value


def _pairing(summary: SweepSummary) -> str:
    """Say along which axes differences are not taken from pairs."""
    pairs = (
        "Configurations of one seed share their draws, so differences are taken from pairs by seed"
    )
    if not summary.unshared:
        return f"{pairs}. "
    return (
        f"{pairs}; those that differ in {' or '.join(summary.unshared)} do not, and are "
        "compared by their means. "
    )


def _notes(summary: SweepSummary) -> Section:
    """Reasons of failures, and other notes on trials."""
    rows: list[Cells] = []
    for trial in summary.runs:
        if trial.note or trial.status == "failed":
            note = _note(trial, _NOTE_CHARACTERS) or "no reason recorded"
            rows.append([trial.number, trial.run_id, trial.status, trial.step, note])
    table = Table(["trial", "run", "status", "step", "note"], rows)
    return Section("Notes", [table] if rows else [])


def _note(trial: Trial, characters: int) -> str:
    return shorten(" ".join(trial.note.split()), characters)


def _how(summary: SweepSummary, heads: Mapping[str, str], resume_command: str) -> Section:
    elapsed = format_duration(summary.seconds)
    summed = format_duration(sum(trial.seconds for trial in summary.trials))
    rows = [
        ["sweep", summary.sweep_id],
        ["base", summary.base],
        ["metric" if len(summary.metrics) == 1 else "metrics", ", ".join(summary.goals)],
        ["search", summary.search],
        ["scheduler", summary.scheduler],
        ["trials", f"{len(summary.runs)} of {summary.total_trials}: {counts(summary)}"],
    ]
    if summary.num_seeds > 1:
        seeds = f"{len(summary.trials)}, each under {summary.num_seeds} seeds"
        rows.append(["configurations", seeds])
    rows.append(["time", f"{elapsed}; {summed} summed over trials"])
    parts: list[Part] = [Table(["", ""], rows)]
    if summary.axes:
        axes = [[axis.path, heads[axis.path], axis.scale] for axis in summary.axes]
        parts.append(Table(["axis", "in the ranking", "scale"], axes))
    if not is_done(summary):
        parts += [Paragraphs("Resume the sweep with:"), Code(resume_command, "shell")]
    return Section("How the sweep was run", parts)


def summary_text(summary: SweepSummary, shares: Mapping[str, float]) -> str:
    """Summarise the result and the next step; `shares` are the importances of axes by path."""
    first = best(summary)
    sentences = []
    failed = [trial for trial in rank(summary) if trial.status == "failed"]
    if summary.verdict:
        sentences = [*summary.verdict]
    elif first is not None:
        sentences = _verdict(summary, first, shares)
    elif why_incomparable(summary):
        sentences = [why_incomparable(summary)]
    elif failed and len(failed) == len(summary.trials):
        count = "The only trial" if len(failed) == 1 else f"All {len(failed)} trials"
        why = _note(failed[0], 300) or "no reason was recorded."
        sentences.append(
            f"{count} failed, so nothing can be ranked. Trial {failed[0].number}: {why}"
        )
    else:
        names = " and ".join(summary.metrics)
        sentences.append(
            f"No trial has a finite value of {names} yet ({counts(summary)}), so nothing can "
            "be ranked."
        )
    if summary.num_seeds > 1:
        sentences += fewer_seeds_sentences(summary)
    if not is_done(summary):
        ended = sum(trial.has_ended for trial in summary.runs)
        whole = f"{ended} of {summary.total_trials} trials have ended ({counts(summary)})"
        sentences.append(f"The sweep is not complete: {whole}.")
    return " ".join(sentences)


def is_done(summary: SweepSummary) -> bool:
    """Return True if no trial is left to start or to resume."""
    return len(summary.runs) >= summary.total_trials and all(
        trial.has_ended for trial in summary.runs
    )


def counts(summary: SweepSummary) -> str:
    """Count trials by status: `9 finished, 4 stopped, 1 failed`."""
    order = ("finished", "stopped", "interrupted", "running", "failed", "waiting")
    number_of = Counter(trial.status for trial in summary.runs)
    found = [f"{number_of[status]} {status}" for status in order if number_of[status]]
    return ", ".join(found) or "none yet"


def settings(summary: SweepSummary, trial: Trial, shares: Mapping[str, float]) -> str:
    """Format a trial's six most important values: `optimizer.lr = 0.0003, batch.size = 64`."""
    used = [axis.path for axis in summary.axes if axis.path in trial.values]
    used.sort(key=lambda path: -shares.get(path, 0.0))
    texts = [
        f"{path} = {shorten(describe_value(trial.values[path]), _SETTING_CHARACTERS)}"
        for path in used[:_SETTINGS]
    ]
    text = ", ".join(texts)
    if len(used) > _SETTINGS:
        text += f" and {len(used) - _SETTINGS} more axes"
    return text


def _verdict(summary: SweepSummary, first: Trial, shares: Mapping[str, float]) -> list[str]:
    name = summary.metrics[0]
    mode = summary.modes[0]
    trade_off = len(summary.metrics) > 1
    unit = summary.unit
    num = len(summary.trials)
    of = f"of the {num} {unit}s" if num > 1 else f"and only {unit}"
    differences = differences_to_best(summary)
    open_ones = not_significantly_different(differences)
    place = "lowest" if mode == "min" else "highest"
    claim = f"is the best {of}"
    if trade_off:
        claim = f"is, in {name} alone, the best {of}"
    elif open_ones:
        others = _others(open_ones)
        claim = f"has the {place} mean {of}, not significantly different from {others}"
    elif summary.num_seeds > 1 and num > 1 and not differences:
        claim = f"has the {place} mean {of}"
    head = (
        f"{unit.capitalize()} {first.number} {claim}: {name} = "
        f"{_value_text(summary, first, name)} ({better(mode)})"
    )
    chosen = settings(summary, first, shares)
    sentences = [f"{head}, with {chosen}." if chosen else f"{head}."]
    if first.status != "finished":
        sentences.append(
            f"It is {first.status} at step {first.step:,} of {first.total_steps:,}: none has "
            "finished yet."
        )
    sentences += filter(None, [steps_sentence(summary)])
    if differences:
        return [*sentences, difference_sentence(summary, differences[0], first)]
    if not trade_off:
        return [*sentences, *_distance(summary, first)]
    front = pareto(summary)
    goals = ", ".join(summary.goals)
    numbers = listed([trial.number for trial in front], 12)
    if not front:
        return [f"No {unit} has finished with a value of each of {goals}.", *sentences]
    if len(front) == 1:
        none = (
            f"{unit.capitalize()} {numbers} is better than or equal to every other finished "
            f"one in each of {goals}: no trade-off."
        )
        return [none, *sentences]
    count = (
        f"{len(front)} {unit}s are Pareto-optimal in {goals}, best in the first to last: {numbers}"
    )
    return [f"{count}. Choose among these.", *sentences]


def seeds_lines(summary: SweepSummary, where: str) -> list[str]:
    """Write lines on the best configuration of several seeds, `where` says which: whether it is
    significantly different from the others, its difference to the next one, and configurations with
    fewer seeds.
    """
    first = best(summary)
    differences = differences_to_best(summary)
    if first is None:
        return []
    if summary.verdict:
        return [f"best mean: {where}", *summary.verdict]
    open_ones = not_significantly_different(differences)
    head = "best"
    if len(summary.metrics) == 1 and len(summary.trials) > 1 and not differences:
        head = "best mean"
    if open_ones:
        head = f"best mean, not significantly different from {_others(open_ones)}"
    next_one = [difference_sentence(summary, each, first) for each in differences[:1]]
    return [f"{head}: {where}", *next_one, *fewer_seeds_sentences(summary)]


def _others(numbers: Sequence[int]) -> str:
    """Name the configurations that may be as good as the best one: `configuration 3`, `4
    others`.
    """
    if len(numbers) == 1:
        return f"configuration {numbers[0]}"
    return f"{len(numbers)} others"


def _value_text(summary: SweepSummary, trial: Trial, name: str) -> str:
    """A metric's value, of a configuration with the interval of its mean over seeds: `0.31 +- 0.02
    over 3 seeds`.
    """
    value = _value(summary, trial, name)
    if isinstance(value, str):
        seeds = "seeds" if trial.num_seeds > 1 else "seed"
        return f"{value} over {trial.num_seeds} {seeds}"
    return format_number(trial.metrics[name])


def _distance(summary: SweepSummary, first: Trial) -> Iterator[str]:
    """Say how far the next trial of the best one's status is behind it."""
    name = summary.metrics[0]
    peers = [
        trial
        for trial in rank(summary)
        if trial.status == first.status and objectives(summary, trial)
    ]
    if len(peers) < 2:
        return
    top = peers[0].metrics[name]
    following = peers[1].metrics[name]
    yield f"The next, trial {peers[1].number}, is at {format_number(following)}."
    if abs(following - top) <= _CLOSE * abs(top):
        yield (
            "That is within 1 %: repeat both with other seeds (`seeds: 3`) before you rely on "
            "the order."
        )


_OUTER = 0.1
"""Part of an axis, at either end, in which the best trials call for a wider one."""


def conclusions(summary: SweepSummary) -> list[str]:
    """Write what a person can act on, a paragraph each; each states what was measured, and is
    dropped otherwise.
    """
    if why_incomparable(summary):
        return list(_cost(summary))
    found = importance(summary)
    return [*_axes(summary, found), *_next(summary, found), *_cost(summary)]


def _axes(summary: SweepSummary, found: Mapping[str, Importance]) -> Iterator[str]:
    num = len(ended_with_value(summary))
    if num < MIN_TRIALS and summary.axes:
        yield (
            f"Which axes matter is not known: {num} {summary.unit}s ended with a value, and "
            f"{MIN_TRIALS} are needed."
        )
    if not found:
        return
    spreads = [
        f"{path} {each.spread:.0f} (by chance {each.by_chance:.0f})" for path, each in found.items()
    ]
    title = f"Spread of mean ranks along each axis, of 100, in {num} {summary.unit}s"
    sentences = [f"{title}: {', '.join(spreads)}."]
    if can_name_axes(summary):
        sentences += _named_axes(found)
    else:
        sentences.append(why_no_axis(summary))
    if summary.search == "optuna":
        sentences.append(
            "Values that the search proposes follow earlier results, so spreads are a hint only."
        )
    yield " ".join(sentences)


def _named_axes(found: Mapping[str, Importance]) -> Iterator[str]:
    """Name the axes along which ranks differ by more than chance, and the others."""
    clear = {path: each for path, each in found.items() if each.is_clear}
    if clear:
        best = ", ".join(f"{path} at {each.best}" for path, each in clear.items())
        yield f"Ranks are best with {best}: search there."
    unclear = [path for path in found if path not in clear]
    if unclear:
        yield (
            f"Along {', '.join(unclear)} ranks differ no more than they may by chance: fix "
            "what is not needed."
        )


def _next(summary: SweepSummary, found: Mapping[str, Importance]) -> Iterator[str]:
    """Name axes that matter at whose end all of the best trials lie."""
    axes = [axis for axis in summary.axes if axis.path in found and found[axis.path].is_clear]
    trials = ended_with_value(summary)
    numbers = {trial.number for trial in trials}
    top = [trial for trial in rank(summary) if trial.number in numbers][: max(3, len(trials) // 10)]
    wider = []
    for axis in axes:
        placed = plot_axis(axis, trials)
        if placed.names:
            continue
        positions = placed.positions
        places = [positions.get(trial.number, 0.5) for trial in top]
        is_low = max(places) <= _OUTER
        if is_low or min(places) >= 1 - _OUTER:
            lowest = min(placed.raw.values())
            highest = max(placed.raw.values())
            ends = f"from {placed.text(lowest)} to {placed.text(highest)}"
            end = "low" if is_low else "high"
            wider.append(f"the best {len(top)} trials lie at the {end} end of {axis.path} ({ends})")
    if wider:
        them = "it" if len(wider) == 1 else "them"
        yield f"To try next: {'; '.join(wider)}, so widen {them} there."


def _cost(summary: SweepSummary) -> Iterator[str]:
    hours = device_hours(summary.trials)
    if not hours:
        return
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    lost = device_hours(failed)
    texts = [f"{num:.3g} {kind} hours" for kind, num in hours.items()]
    for kind, num in lost.items():
        if num:
            texts.append(f"{num:.2g} {kind} hours of these in {len(failed)} failed trials")
    yield f"Cost: {', '.join(texts)}."
