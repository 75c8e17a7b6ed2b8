"""Note of a training run: what it is, its result beside baselines, samples, the spec in five lines, how to go on."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ditlab.tracking.journal.facts import MAIN_TAG, JournalFacts
from ditlab.tracking.journal.results import RESULT_PREFIXES, MetricSpan, RunResults
from ditlab.tracking.names import artifact_image
from ditlab.tracking.notes.markdown import charts, code, listed, page, picture, plain, table
from ditlab.tracking.parameters import as_count

_SPEC_LINES = (("model",), ("objective", "sampling"), ("data",), ("optimizer", "schedule"), ("batch", "training"))
"""Sections of the spec by line of the note."""
_MOST_ROWS = 12
_SAMPLES = "samples"
_QUARTER = re.compile(r"_t\d$")
"""Metrics of a part of the times, which stand after the others."""
_NAMES_OF_BASELINES = {"bound": "nats_per_token"}
"""Metrics of a model whose baselines' values have another name."""
_STATUS = {
    "running": "in training", "finished": "finished", "failed": "**failed**", "interrupted": "interrupted",
    "stopped": "stopped early by its sweep",
}  # fmt: skip


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
        return "\n\n".join(filter(None, self._parts())) + "\n"

    def _parts(self) -> Iterator[str]:
        yield self._description()
        yield self._headline()
        if self.message and self.facts.status == "failed":
            yield f"Reason: {plain(self.message, 400)}"
        yield self._result()
        yield self._pictures()
        if self.facts.page:
            yield f"**{page('Page of this run', self.facts.page)}**: curves, samples over the steps, speed, failures."
        yield listed(spec_lines(self.facts.params))
        if self.facts.status in ("running", "failed", "interrupted"):
            yield "To go on, where the run's files are, with its `spec.yaml` (among the artifacts):"
            yield code([f"ditlab train spec.yaml --resume {self.run_id}"])

    def _description(self) -> str:
        facts = self.facts
        total = as_count(facts.params.get("parameters.total", ""))
        size = "" if total is None else f" of {total:,} parameters"
        data = f", trained on {plain(facts.dataset['name'])}" if facts.dataset else ""
        count = facts.dataset.get("counts", {}).get("train")
        rows = f" ({count:,} samples)" if count else ""
        status = _STATUS.get(facts.status, facts.status)
        return (
            f"**{plain(facts.name)}**: a {plain(facts.family)}{size}{data}{rows}. "
            f"Run {plain(self.run_id)}, {status}, step {self.step:,} of {self.total_steps:,}."
        )

    def _headline(self) -> str:
        """The metric that is read first, where MLflow shows it before the note is unfolded."""
        name = self.facts.tags.get(MAIN_TAG, "")
        if (span := self.results.get(name)) is None:
            return ""
        parts = [f"**{plain(name)} {number(span.last.value)}** at step {span.last.step:,}"]
        if _untrained(span):
            parts.append(f"{_untrained(span)} untrained")
        if span.low.step != span.last.step:
            parts.append(f"lowest {number(span.low.value)} at step {span.low.step:,}")
        return f"{'; '.join(parts)}."

    def _result(self) -> str:
        """The newest value of each metric of evaluations, beside its baselines."""
        main = self.facts.tags.get(MAIN_TAG, "")
        names = [name for name in self.results if name.startswith(RESULT_PREFIXES) and not _is_baseline(name)]
        if not names:
            return ""
        names.sort(key=lambda name: (name != main, bool(_QUARTER.search(name))))
        rows = []
        for name in names[:_MOST_ROWS]:
            span = self.results[name]
            rows.append([plain(name), number(span.last.value), _untrained(span), _baselines(name, self.results)])
        more = f"\n\n{len(names) - _MOST_ROWS} more among the metrics." if len(names) > _MOST_ROWS else ""
        return f"{table(['metric', 'now', 'untrained', 'to compare'], rows)}{more}"

    def _pictures(self) -> str:
        step = self.facts.images.get(_SAMPLES)
        if step is None:
            return ""
        file = artifact_image(_SAMPLES, step)
        tags = self.facts.tags
        place, digest = tags.get("ditlab.samples.checkpoint", ""), tags.get("ditlab.samples.manifest", "")
        source = ""
        if place and tags.get("ditlab.samples.step") == str(step):
            short = f", manifest {plain(digest[:16])}" if digest else ""
            source = f" Their weights: checkpoint {plain(posixpath.basename(place.rstrip('/')))}{short}."
        text = f"Samples of step {step:,} ({page('as a file', file)}; {charts('all steps')}).{source}"
        return f"{text}\n\n{picture(f'samples of step {step:,}', file)}"


def spec_lines(params: Mapping[str, str]) -> list[str]:
    """The spec in five lines, from its flattened fields; nulls and the sections about storage are left out."""
    lines = []
    for sections in _SPEC_LINES:
        parts = []
        for section in sections:
            fields = [
                f"{name.removeprefix(f'{section}.')}={value}"
                for name, value in params.items()
                if name.startswith(f"{section}.") and value != "null"
            ]
            if fields:
                parts.append(f"{section}: {', '.join(sorted(fields, key=_kind_first))}")
        if parts:
            lines.append("; ".join(parts))
    return lines


def number(value: float) -> str:
    """A figure to four digits; NaN and infinities as words."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _kind_first(field: str) -> bool:
    return not field.startswith(("family=", "kind=", "solver="))


def _is_baseline(name: str) -> bool:
    """Return True for values to compare with: of simple predictors, real samples and chance."""
    return "/baseline/" in name or "/reference/" in name or name.endswith(("_real", "_chance", "_held_out", "_error"))


def _untrained(span: MetricSpan) -> str:
    """The value before the first step, if it was measured."""
    return number(span.first.value) if span.first.step == 0 and span.last.step > 0 else ""


def _baselines(name: str, results: RunResults) -> str:
    """Values to compare a metric with, as the family or the quality metrics give them."""
    prefix, _, rest = name.partition("/")
    rest = _NAMES_OF_BASELINES.get(rest, rest)
    found = {}
    for other, span in results.items():
        if not _is_baseline(other) or not other.startswith(f"{prefix}/"):
            continue
        inner = other.removeprefix(f"{prefix}/")
        for kind in ("baseline/", "reference/"):
            if inner.startswith(kind) and inner.endswith(f"/{rest}"):
                found[inner.removeprefix(kind).removesuffix(f"/{rest}")] = span.last.value
        for ending, word in (("_chance", "chance"), ("_real", "real"), ("_held_out", "held out")):
            if other == f"{name}{ending}":
                found[word] = span.last.value
    return ", ".join(f"{plain(word, 60)} {number(value)}" for word, value in list(found.items())[:4])
