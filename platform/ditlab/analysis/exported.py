"""An exported model: a network with its weights, its spec and its sampler, without a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from denoisers.contract import Sampler, TextCodec
from ditlab.analysis.drawing import changes_of, draw_all, origin_of
from ditlab.analysis.sample_options import SampleKeywords, sample_options
from ditlab.analysis.sample_request import folder_name, num_samples, sample_request
from ditlab.analysis.sample_set import SampleSet
from ditlab.analysis.user_errors import building
from ditlab.data.text.tokenizer import TOKENIZER_NAME, open_tokenizer, text_codec
from ditlab.errors import UserError
from ditlab.inputs.conditions import sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign
from ditlab.training.export import SPEC_NAME, WEIGHTS_NAME, check_export, load_checked


@dataclass(frozen=True)
class ExportedModel:
    """A network ready to use, from a folder that `ditlab export` wrote."""

    folder: Path
    spec: Experiment
    """The experiment that trained the network."""
    network: nn.Module
    """The network with the exported weights, in evaluation mode."""
    step: int
    """Optimiser step of the weights."""

    @property
    def text(self) -> TextCodec | None:
        """The codec of the export's tokeniser; None for a model of other data than text."""
        file = self.folder / TOKENIZER_NAME
        return text_codec(open_tokenizer(file)) if file.exists() else None

    @cached_property
    def sampler(self) -> Sampler:
        """The family's sampler (`denoisers.contract.Sampler`) under the spec's sampling settings."""
        return self._sampler(self.spec)

    def sample(self, num: int | None = None, **keywords: Unpack[SampleKeywords]) -> SampleSet:
        """Draw `num` samples from noise (default: 64, or 4 of each prompt).

        Raises UserError for options that do not fit, and for a model that completes rows of data or takes conditions
        from them where no prompts are given: an export has no data.
        """
        options = sample_options(num, keywords)
        spec = build_experiment(
            assign(self.spec.to_dict(), changes_of(options), class_for), str(self.folder / "spec.yaml")
        )
        sampler = self._sampler(spec)
        request = sample_request(options, sampler)
        if sampler.takes_rows == "completed" or (sampler.takes_rows == "conditions" and not request.prompts):
            remedy = "use the run" if sampler.takes_rows == "completed" else "give prompts, or use the run"
            raise UserError(f"{self.folder}: this model samples from rows of data, and an export has none; {remedy}.")
        device = next(self.network.parameters()).device
        inputs = ModelInputs.from_experiment(spec, (), device)
        wanted = num_samples(options.num, request, sampler, options.noise)
        conditions = sample_conditions(sampler, wanted, None, inputs, request)
        seed = spec.seed if options.seed is None else options.seed
        drawn = draw_all(sampler, self.network, conditions, seed, options)
        name = folder_name(self.step, spec.to_dict()["sampling"], None, request, seed, options.noise)
        origin = origin_of(self.spec.name, self.step, options.start)
        return SampleSet(drawn, sampler, self.step, origin, self.folder / "samples" / name)

    def _sampler(self, spec: Experiment) -> Sampler:
        with building():
            return spec.family.build_sampler(spec.sampling, spec.model, spec.objective, self.text)


def open_export(folder: Path, device: torch.device, warn: Callable[[str], None]) -> ExportedModel:
    """Load an export onto `device`.

    `warn` is called for files changed since it was written. Raises UserError for a folder that holds no export, and for
    a damaged one.
    """
    for name in (SPEC_NAME, WEIGHTS_NAME):
        if not (folder / name).exists():
            raise UserError(f"{folder} holds no {name}, so it is no export; write one with `ditlab export`.")
    facts = check_export(folder, warn)
    return ExportedModel(folder, *load_checked(folder, device), facts.step)
