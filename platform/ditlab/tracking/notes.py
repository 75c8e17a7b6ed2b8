"""Notes that MLflow shows with a run, as Markdown: what a reviewer reads first. Imports no mlflow.

In this Markdown every text of a person's is shown as it was written. A run's note says what it is,
its result beside baselines, samples, the spec in five lines, and how to go on; a sweep's note ranks
its trials.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ditlab.receipts.records import protocols_text
from ditlab.secrets import hide
from ditlab.tracking.history import MAIN_TAG, JournalFacts, MetricSpan, RunResults
from ditlab.tracking.journal import RESULT_PREFIXES
from ditlab.tracking.names import (
    MODEL_TRAINING,
    artifact_image,
    as_count,
    change_texts,
    experiment_page,
    shorten,
)
from ditlab_models.intervals import doubtful_intervals, interval_ends

_PLAIN = re.compile(r"[^A-Za-z0-9 ,./()=+%-]", re.ASCII)
_MARGIN = 1000
"""Characters beyond a text's limit in which secrets are looked for: one that is cut in two would be
shown.
"""
_ADDRESS = re.compile(r"\]\((picture|page|charts):([^()\s]*)\)")
_SPEC_LINES = (
    ("model",),
    ("objective", "sampling"),
    ("data",),
    ("optimizer", "schedule"),
    ("batch", "training"),
)
"""Sections of the spec by line of the note."""
_MOST_ROWS = 12
_SAMPLES = "samples"
_BASELINE = re.compile(r"/(baseline|reference)/|_(real|chance|held_out|error)$")
"""Metrics to compare others with: of simple predictors, real samples and chance."""
_QUARTER = re.compile(r"_t\d$")
"""Metrics of a part of the times, which stand after the others."""
_NAMES_OF_BASELINES = {"bound": "nats_per_token"}
"""Metrics of a model whose baselines' values have another name."""
_STATUS = {
    "running": "in training",
    "finished": "finished",
    "failed": "**failed**",
    "interrupted": "interrupted",
    "stopped": "stopped early by its sweep",
}
_LONGEST_CODE = 160
_MOST_TRIALS = 10
_MOST_AXES = 6
_MOST_RESUMES = 4
_LONGEST_RANKING = 2500
"""Characters: MLflow takes a note of 8,000."""


def plain(text: object, limit: int = 120) -> str:
    """A text of one line that no reader of Markdown or HTML takes for markup, of at most about
    `limit` characters.

    Everything but letters, digits and a few marks becomes a numeric entity: no tag, link, mention
    or address is left.
    """
    beginning = hide(str(text)[: limit + _MARGIN])
    kept = "".join(" " if unicodedata.category(mark)[0] in "CZ" else mark for mark in beginning)
    short = shorten(" ".join(kept.split()), max(limit, 60))
    return _PLAIN.sub(_entity, short).replace("www.", "www&#46;")


def _entity(found: re.Match[str]) -> str:
    """The numeric entity of an ASCII character; another character stays."""
    if found[0].isascii():
        return f"&#{ord(found[0])};"
    return found[0]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already. Empty columns are dropped; a space separates the
    others in MLflow.
    """
    lines = [list(row) for row in rows]
    kept = [place for place in range(len(head)) if place == 0 or any(row[place] for row in lines)]

    def cells(row: Sequence[str]) -> list[str]:
        return [f"&ensp;{row[place]}" if place else row[place] for place in kept]

    table = [cells(head), ["---" for _ in kept], *map(cells, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def code(lines: Iterable[str]) -> str:
    """A block in which nothing is markup; each line is cut to 160 characters."""
    kept = (
        re.sub(r"[`\x00-\x1f\x7f]+", " ", hide(line[: _LONGEST_CODE + _MARGIN])) for line in lines
    )
    return "\n".join(["```", *(shorten(line, _LONGEST_CODE) for line in kept), "```"])


def listed(lines: Iterable[str]) -> str:
    """A list of plain lines of at most about 400 characters. A page breaks them; a block's lines
    would widen it.
    """
    return "\n".join(f"- {plain(line, 400)}" for line in lines)


def picture(title: str, artifact: str) -> str:
    """A picture among the run's artifacts; `with_addresses` puts in the address under which it is
    shown.
    """
    return f"![{title}](picture:{quote(artifact)})"


def page(title: str, artifact: str) -> str:
    """A link to a page among the run's artifacts."""
    return f"[{title}](page:{quote(artifact)})"


def with_addresses(text: str, experiment_id: str, mlflow_run_id: str) -> str:
    """The note with the addresses of its pictures and pages, relative to MLflow's: 3.17 renders no
    `data:` ones.
    """

    def address(found: re.Match[str]) -> str:
        if found[1] == "picture":
            return f"](get-artifact?path={found[2]}&run_uuid={mlflow_run_id})"
        if found[1] == "charts":
            return f"]({experiment_page(experiment_id, charts=True)})"
        run = f"#/experiments/{experiment_id}/runs/{mlflow_run_id}"
        return f"]({run}/artifacts/{found[2]}?{MODEL_TRAINING})"

    return _ADDRESS.sub(address, text)


@dataclass(frozen=True)
class RunNote:
    """Content of a run's note."""

    run_id: str
    facts: JournalFacts
    results: RunResults
    step: int
    """Last step that is known."""
    total_steps: int
    message: str = ""
    """Reason of a failure."""

    def text(self) -> str:
        """The note as Markdown, its addresses not yet filled in."""
        facts = self.facts
        parts = [self._heading(), self._headline()]
        if self.message and facts.status == "failed":
            parts.append(f"Reason: {plain(self.message, 400)}")
        parts += [*self._metrics(), *self._samples()]
        if facts.page:
            parts.append(
                f"**{page('Page of this run', facts.page)}**: curves, samples over the steps, "
                "speed, failures."
            )
        lines = spec_lines(facts.current_params)
        # MLflow's parameters are those of the first start
        for record in facts.resumes[-_MOST_RESUMES:]:
            lines.append(
                f"resumed after step {record['step']:,} with "
                f"{'; '.join(change_texts(record['changes']))}"
            )
        parts.append(listed(lines))
        if facts.status in ("running", "failed", "interrupted"):
            parts.append(
                "To go on, where the run's files are, with its `spec.yaml` (among the artifacts):"
            )
            parts.append(code([f"ditlab train spec.yaml --resume {self.run_id}"]))
        return "\n\n".join(filter(None, parts)) + "\n"

    def _heading(self) -> str:
        facts = self.facts
        total = as_count(facts.params.get("parameters.total", ""))
        model = f"**{plain(facts.name)}**: a {plain(facts.family)}"
        if total is not None:
            model += f" of {total:,} parameters"
        if facts.dataset:
            model += f", trained on {plain(facts.dataset['name'])}"
        count = facts.dataset.get("counts", {}).get("train")
        if count:
            model += f" ({count:,} samples)"
        status = _STATUS.get(facts.status, facts.status)
        run = f"Run {plain(self.run_id)}, {status}, step {self.step:,} of {self.total_steps:,}"
        if facts.cost:
            run += f", {facts.cost}"
        return f"{model}. {run}."

    def _headline(self) -> str:
        """The main metric: MLflow shows it before the note is unfolded."""
        main = self.facts.tags.get(MAIN_TAG, "")
        span = self.results.get(main)
        if not span:
            return ""
        words = [
            f"**{plain(main)} {number(span.last.value)}** at step {span.last.step:,}",
            *against(span),
        ]
        return f"{'; '.join(words)}."

    def _metrics(self) -> list[str]:
        """A table of the results, the main metric first, and what they were measured with."""
        names = [
            name
            for name in self.results
            if name.startswith(RESULT_PREFIXES) and not _BASELINE.search(name)
        ]
        intervals = interval_ends({name: self.results[name].last.value for name in names})
        names = [
            name
            for name in names
            if re.sub("_(low|high|df)$", "", name) not in intervals.keys() - {name}
        ]
        if not names:
            return []
        main = self.facts.tags.get(MAIN_TAG, "")
        names.sort(key=lambda name: (name != main, bool(_QUARTER.search(name))))
        rows = []
        for name in names[:_MOST_ROWS]:
            span = self.results[name]
            now = number(span.last.value)
            if name in intervals:
                interval = intervals[name]
                now += f" ({number(interval.low)} to {number(interval.high)})"
            known = baselines(name, self.results).items()
            compared = ", ".join(f"{plain(word, 60)} {number(value)}" for word, value in known)
            rows.append([plain(name), now, untrained(span), compared])
        parts = [
            table(["metric", "now", "untrained", "to compare"], rows),
            protocols_text(self.facts.tags, *(prefix.rstrip("/") for prefix in RESULT_PREFIXES)),
            self.facts.held_out_text(self.results),
            plain(doubtful_intervals(intervals), 2000),
        ]
        if len(names) > _MOST_ROWS:
            parts.append(f"{len(names) - _MOST_ROWS} more among the metrics.")
        return parts

    def _samples(self) -> list[str]:
        """The newest samples."""
        step = self.facts.images.get(_SAMPLES)
        if step is None:
            return []
        file = artifact_image(_SAMPLES, step)
        return [
            f"Samples of step {step:,} ({page('as a file', file)}; [all steps](charts:)).",
            picture(f"samples of step {step:,}", file),
        ]


def spec_lines(params: Mapping[str, str]) -> list[str]:
    """The spec in five lines, from its flattened fields; nulls and the sections about storage are
    dropped.
    """
    lines = []
    for sections in _SPEC_LINES:
        parts = []
        for section in sections:
            names = [
                name
                for name, value in params.items()
                if name.startswith(f"{section}.") and value != "null"
            ]
            fields = [f"{name.removeprefix(f'{section}.')}={params[name]}" for name in names]
            fields.sort(key=lambda field: not field.startswith(("family=", "kind=", "solver=")))
            if fields:
                parts.append(f"{section}: {', '.join(fields)}")
        if parts:
            lines.append("; ".join(parts))
    return lines


def number(value: float) -> str:
    """A figure to four digits; NaN and infinities as words."""
    if math.isfinite(value):
        return f"{value:.4g}"
    return str(value)


def untrained(span: MetricSpan) -> str:
    """The value before the first step, if it was measured."""
    if span.first.step == 0 and span.last.step > 0:
        return number(span.first.value)
    return ""


def against(span: MetricSpan) -> list[str]:
    """Clauses on what a metric's last value compares with in its own run: before the first step,
    and the lowest.
    """
    found = []
    first = untrained(span)
    if first:
        found.append(f"{first} untrained")
    if span.low.step != span.last.step:
        found.append(f"lowest {number(span.low.value)} at step {span.low.step:,}")
    return found


def baselines(name: str, results: RunResults) -> dict[str, float]:
    """Values to compare a metric with by what they are of, as the family or the quality metrics
    give them.
    """
    prefix, _, rest = name.partition("/")
    rest = _NAMES_OF_BASELINES.get(rest, rest)
    found = {
        f"{name}{ending}": word
        for ending, word in (("_chance", "chance"), ("_real", "real"), ("_held_out", "held out"))
    }
    for other in results:
        inside = re.fullmatch(
            rf"{re.escape(prefix)}/(?:baseline|reference)/(.+)/{re.escape(rest)}", other
        )
        if inside:
            found[other] = inside[1]
    known = {word: results[at].last.value for at, word in found.items() if at in results}
    return dict([*known.items()][:4])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    return plain(value, 60)


@dataclass(frozen=True)
class SweepNote:
    """Content of a sweep's note."""

    run_id: str
    name: str
    status: str
    """`finished`, `interrupted`, `failed`, `stopped`, or `running`."""
    metrics: Sequence[str]
    modes: Sequence[str]
    num_trials: int
    """0: not known yet."""
    ranking: Mapping[str, Sequence[Any]]
    """Columns `trial` (of several seeds `configuration`), `run`, `status`, `step`, the metrics and
    the axes, the best first.

    Empty before any.
    """
    best: str = ""
    """The best trial, as `trial 3 (run 1a2b3c4d)`; empty where no trial has a value."""
    best_spec: Mapping[str, str] = field(default_factory=dict)
    """The best trial's spec, flattened."""
    figures: Sequence[str] = ()
    """Paths of pictures among the run's artifacts."""
    page: str = ""
    """Path of the sweep's report among the run's artifacts."""

    def text(self) -> str:
        """The note as Markdown, its addresses not yet filled in."""
        goal = ", ".join(
            f"{plain(name)} ({mode})" for name, mode in zip(self.metrics, self.modes, strict=True)
        )
        sweep = "a sweep"
        if self.num_trials:
            sweep = f"a sweep of {self.num_trials} trials"
        about = f"**{plain(self.name)}**: {sweep} by {goal}."
        parts = [f"{about} Run {self.run_id}, {self.status}."]
        if self.ranking:
            parts += self._ranking()
        if self.best:
            parts += [f"Best: {plain(self.best)}", listed(spec_lines(self.best_spec))]
        if self.page:
            parts.append(
                f"**{page('Report of this sweep', self.page)}**: ranking, what mattered, "
                "learning curves."
            )
        parts += [picture(plain(path.rpartition("/")[2]), path) for path in self.figures]
        if self.status in ("running", "failed", "interrupted", "stopped"):
            parts += [
                "To go on, where the sweep's files are:",
                code([f"ditlab tune --resume {self.run_id}"]),
            ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def _ranking(self) -> list[str]:
        """A table of the first trials, as far as it fits into a note."""
        figures = [name for name in self.ranking if name.startswith((*self.metrics, "to the best"))]
        known = ("trial", "configuration", "run", "status", "step", "seeds", *figures)
        axes = [name for name in self.ranking if name not in (*known, "seconds", "note")][
            :_MOST_AXES
        ]
        names = [*(name for name in known if name in self.ranking), *axes]
        rows = []
        length = 0
        for values in zip(*(self.ranking[name][:_MOST_TRIALS] for name in names), strict=True):
            row = [_cell(value) for value in values]
            length += sum(map(len, row))
            if length <= _LONGEST_RANKING:
                rows.append(row)
        parts = [table([plain(name, 60) for name in names], rows)]
        num_left = len(self.ranking["run"]) - len(rows)
        if num_left:
            parts.append(f"{num_left} more in `ranking.json`.")
        return parts
