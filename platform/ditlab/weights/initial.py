"""Published weights at the start of a run (`model.init`): checked before it, loaded by every
worker, recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.selection import MOST_LISTED, selection_sentences
from ditlab.spec.values import format_value
from ditlab.weights.class_names import CLASSES_NAME, REMEDY, moved_class, unmatched_names
from ditlab.weights.published import PublishedWeights
from ditlab.weights.rules import Fit
from ditlab_models.contract import ModelSpec, WeightsInit

OPTION = "model.init.from"


@dataclass(frozen=True)
class InitialWeights:
    """Weights from which a run begins while it has no checkpoint."""

    model: ModelSpec
    home: Home
    record: Mapping[str, str]
    """Source, revision, format and hashes as the run has recorded them; {} before it has."""

    def load(self, network: Any) -> None:
        """Load them into a network. Raises UserError where they are gone, other than recorded, or
        do not fit.
        """
        found = self.open()
        network.load_state_dict(self._checked(found, network).values, strict=False)

    def open(self) -> PublishedWeights:
        """Open them, and check their hash where one is given or recorded. Raises UserError as
        `load` does.
        """
        init = self._init
        format = self.record.get("format", init.format)
        found = PublishedWeights.open(
            init.source,
            OPTION,
            self.home,
            format,
            self.record.get("revision", ""),
            init.weights,
        )
        for expected, whose, remedy in (
            (init.sha256, "model.init.sha256 is", "or set model.init.sha256 to the first"),
            (self.record.get("sha256"), "the run began with", "or start a new run"),
        ):
            if expected and found.files.sha256 != expected:
                raise UserError(
                    f"{found.files.option} has SHA-256 {found.files.sha256}, and {whose} "
                    f"{expected}; bring those weights back, {remedy}."
                )
        return found

    def recorded(self) -> Mapping[str, str]:
        """Return source, revision, format and hashes as the run has them recorded, or is to. Raises
        as `load`.
        """
        if self.record:
            return self.record
        found = self.open()
        facts = {
            "source": self._init.source,
            "revision": found.files.revision,
            "format": found.format.name,
            "taken": selection_sentences(found.choices),
            "sha256": found.files.sha256,
        }
        if len(found.files.hashes) > 1:
            facts |= {f"sha256 of {name}": digest for name, digest in found.files.hashes.items()}
        return {name: text for name, text in facts.items() if text}

    def check(self, network: Any, classes: Sequence[str] | None = None) -> str:
        """Check that they fit a network, on the meta device too, and return a line for people.

        `classes`: names of the data's, empty where they have none; None: not compared. Raises as
        `load`, and UserError where numbers mean other classes to the weights.
        """
        found = self.open()
        class_note = self._class_note(found, classes)
        fit = self._checked(found, network)
        plural = "s" if len(fit.values) > 1 else ""
        line = (
            f"begins from {found.format.name} weights at {self._init.source}: "
            f"{len(fit.values)} tensor{plural}"
        )
        if found.choices:
            line += f" ({selection_sentences(found.choices)})"
        if fit.kept:
            line += (
                f"; {len(fit.kept)} that the format lacks stay as the seed gives them "
                f"({fit.kept[0]} the first)"
            )
        problems = fit.problems
        if problems:
            line += f"; {len(problems)} do not fit: {'; '.join(problems[:MOST_LISTED])}"
        if fit.rounded:
            line += f"; float64 numbers of {len(fit.rounded)} are rounded to float32"
        others = self._others(found)
        if others:
            line += f"; the weights' own spec has {', '.join(others.values())}"
        if class_note:
            line += f"; {class_note}"
        assumed = self._assumed(found)
        if assumed:
            line += f"; {' '.join(assumed)}"
        return line

    def _class_note(self, found: PublishedWeights, classes: Sequence[str] | None) -> str:
        """Return a sentence on classes that nothing compares, or that `strict: false` lets be
        others; empty for none. Raises UserError where numbers mean other classes to the weights.
        """
        if classes is None or getattr(self.model, "num_classes", None) is None:
            return ""
        owner = f"the weights at {self._init.source}"
        theirs = found.format.classes(found.files)
        moved = moved_class(owner, theirs, classes, "label")
        if moved and self._init.strict:
            raise UserError(
                f"{found.files.option}: {moved}; {REMEDY} (that of the weights is their "
                f"{CLASSES_NAME}), or set model.init.strict to false."
            )
        return moved or unmatched_names(owner, theirs, classes).rstrip(".")

    @property
    def _init(self) -> WeightsInit:
        assert self.model.init is not None
        return self.model.init

    def _checked(self, found: PublishedWeights, network: Any) -> Fit:
        """Compare weights and network. Raises UserError for what `strict` refuses, and where
        nothing fits.
        """
        fit = found.fit(network)
        refusal = found.refusal(fit)
        if refusal and (self._init.strict or not fit.values):
            loose = ""
            if fit.values:
                loose = ", or model.init.strict to false to load what fits"
            raise UserError(f"{refusal}; set model as `ditlab weights inspect` prints it{loose}.")
        if self._init.strict:
            self._refuse_other_outputs(found)
        return fit

    def _refuse_other_outputs(self, found: PublishedWeights) -> None:
        """Raise UserError where a field that shapes do not show differs from the weights' own."""
        others = self._others(found)
        certain = [name for name in found.format.certain if name in others]
        if not certain:
            return
        listed = ", ".join(others[name] for name in certain)
        values = ", ".join(
            f"model.{name}={format_value(getattr(self.model, name, None))}"
            for name in sorted(set(certain))
        )
        raise UserError(
            f"{found.files.option} was trained with {listed}, and {values} makes other "
            "outputs of it; set model as `ditlab weights inspect` prints it, or "
            "model.init.strict to false."
        )

    def _assumed(self, found: PublishedWeights) -> Sequence[str]:
        """Return what is assumed of weights whose format nobody named."""
        if self._init.format != "auto":
            return ()
        try:
            return found.format.notes(found.model(), found.files)
        except UserError:  # not strict: no spec describes them
            return ()

    def _others(self, found: PublishedWeights) -> dict[str, str]:
        """Return, by field, what the weights' own spec has where this model has another value."""
        try:
            theirs = found.model()
        except UserError:
            if self._init.strict and self._init.format == "auto":
                raise
            return {}
        own: dict[str, Any] = self.model.model_dump(mode="json", exclude={"init"})
        return {
            name: f"model.{name}={format_value(value)}"
            for name, value in theirs.items()
            if own.get(name) != value
        }
