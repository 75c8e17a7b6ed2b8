"""A run of about twenty steps under the training loop itself, killed and resumed within, every step
compared.

After its last step: an evaluation, a sample, what either does with labels, and the conditions that
training drops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.data.splits import classes_with_samples
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.inputs.conditions import rows_for_samples
from ditlab.inputs.meta_step import DTYPES
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import ignore
from ditlab.reports.formatting import listed
from ditlab.spec.experiment import Experiment
from ditlab.training.evaluation import draw_samples, metrics_by_part
from ditlab.training.plan import RunPlan, TrainingRun
from ditlab.training.state import CopiedState, TrainingState
from ditlab.training.trainer import Trainer
from ditlab_addons.check.process_group import observed_trainer, report_done, unattended_run
from ditlab_addons.check.prove.findings import Findings, differing
from ditlab_addons.check.prove.observing import (
    BESIDE,
    RecordedStep,
    StepRecorder,
    WholeStep,
    join_slices,
    perturbed,
    seed_generators,
)
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.components import compare_components
from ditlab_addons.check.prove.properties.held_out import compare_held_out
from ditlab_addons.check.prove.properties.parameters import compare_parameters
from ditlab_addons.check.prove.properties.sampler import compare_guidance, compare_sampler
from ditlab_addons.check.prove.properties.training_draws import compare_training_draws
from ditlab_addons.check.prove.properties.training_rows import compare_order, compare_split
from ditlab_addons.check.prove.reference import (
    FLOAT32,
    UNITS,
    ReferenceModel,
    ReferenceNoise,
    ReferenceTrainer,
    Tensors,
    Whole,
)
from ditlab_addons.check.prove.steps import DEVIATIONS, FIELDS, MARGIN, StepComparer
from ditlab_addons.check.watching import seen_inputs

FRESH = 4
LATER = 16
LOST = 2
"""Steps from fresh weights, steps from a perturbed state, and steps that a kill loses."""
MOST_DRAWN = 1000
"""Furthest step for a mixture, whose order draws for every step before."""
LOSS_SCALE = 2.0**8
"""Scale of float16's loss in the later steps: a run's first scale overflows and skips steps until
it fits.
"""
MOST_HELD_OUT = 16
MOST_SAMPLING_STEPS = 4
"""Held-out samples that are evaluated, and steps of the sampler for the one sample."""
ROWS = 32
PASSES = 16
"""Samples of a pass, and passes, in which conditions are dropped: 512 decisions."""


class RunStages(NamedTuple):
    """Steps done at the ends of a proof's stages: from fresh weights; where a perturbed state is
    put in their place; at the checkpoint; at the kill that it goes on from; at the end."""

    fresh: int
    begun: int
    saved: int
    killed: int
    last: int

    @property
    def num_compared(self) -> int:
        """Steps that are compared, each once."""
        return self.fresh + self.last - self.begun

    @classmethod
    def of(cls, experiment: Experiment, plan: RunPlan) -> RunStages:
        """Choose the stages of a run, the later ones around the first end of an epoch after the
        warm-up, the kill within an epoch where an epoch has several steps; a short run is trained
        from first to last."""
        total = plan.total_steps
        epoch = plan.epoch_steps
        rising = getattr(experiment.schedule, "warmup_steps", None)
        warmup = rising(epoch) if rising else 0
        border = min(max(warmup, 100), MOST_DRAWN)
        if epoch:
            border = -(-max(warmup, epoch) // epoch) * epoch
        fresh = min(FRESH, max(1, total // 2))
        later = min(LATER, total - fresh)
        begun = max(fresh, min(border - later // 2, total - later))
        last = begun + later
        saved = max(begun, begun + (later + 1) // 2 - 1)
        if epoch > 1 and saved % epoch == 0:
            saved = saved + 1 if last - saved > 1 else max(begun, saved - 1)
        return cls(fresh, begun, saved, min(saved + LOST, last), last)


def prove_run(experiment: Experiment, home: Home, rank: Rank, folder: Path) -> Findings:
    """Compare a run's steps and its life with the reference; on every worker of its group, in an
    empty folder.

    Held-out samples and steps of a sampler are few, and weights fresh. Returns this worker's
    comparisons, all workers' together being the proof. Raises what training raises while all holds.
    """
    limit = min(MOST_HELD_OUT, experiment.evaluation.limit)
    changes: dict[str, Any] = {"checkpoint.every": None, "start": None, "evaluation.limit": limit}
    if hasattr(experiment.sampling, "steps"):
        changes["sampling.steps"] = min(
            MOST_SAMPLING_STEPS, experiment.sampling.steps or MOST_SAMPLING_STEPS
        )
    own = unattended_run(experiment, home, folder, changes)
    proof = _RunProof(own, rank)
    findings = proof.findings
    try:
        proof.run()
    # a state with NaN cannot be saved: what was off before it is the finding
    except RunFailed as error:
        # All workers fail alike where training diverged; the first one compares the steps.
        if error.kind != "diverged" or (
            rank.is_first and all(each.holds for each in findings.all())
        ):
            raise
        if rank.is_first:
            findings.untold.append(
                f"Training ended early, and what follows was not compared: {error}"
            )
    return findings


class _RunProof:
    """One worker's part of a proof: the training, and what is compared of it."""

    def __init__(self, run: TrainingRun, rank: Rank) -> None:
        self._run = run
        self._rank = rank
        self._channel = ControlChannel(rank)
        self.findings = Findings()
        self._comparer: StepComparer | None = None
        if rank.is_first:
            self._comparer = StepComparer(run, rank, self.findings)
        self._kind = "ema" if run.experiment.training.ema else "master"
        """Field of a state whose weights an evaluation, and sampling, take."""
        self._stages = RunStages.of(run.experiment, run.plan)
        keeps = range(self._stages.saved + 1, self._stages.killed + 1)
        measured = self._comparer.measured if self._comparer else ignore
        self._recorder = StepRecorder(self._channel, self._compare, measured, keeps)
        self._is_again = False
        """True while the steps that a kill lost, which were compared before, are done again."""
        self._slope: tuple[int, Whole] | None = None
        self._num_compared = 0

    def run(self) -> None:
        """Train and compare."""
        stages = self._stages
        comparer = self._comparer
        with self._trainer(process_seed=1) as trainer:
            trainer.resume()
            begun = CopiedState.of(trainer.state)
            fields = self._fields(begun, "master")
            if comparer:
                trained = fields.get("master", {})
                compare_parameters(comparer.reference, trained, self.findings)
                compare_order(comparer.order.sources(), self.findings)
                comparer.compare_plan(merged(fields))
            moments = self._run.experiment.optimizer.rates("matrix").moments
            due = dict.fromkeys(["master", *moments, self._kind])
            missing = [FIELDS[kind] for kind in due if begun.tensors and not begun.has(kind)]
            self.findings.same("resume", "parts of the state saved", missing)
            trainer.train_span(stages.fresh)
            if stages.last > stages.fresh:
                self._perturb(trainer.state, stages.begun)
                trainer.train_span(stages.saved, saves=True)
            saved = CopiedState.of(trainer.state)
            if stages.killed > stages.saved:
                trainer.train_span(stages.killed)
        del trainer
        lost = dict(self._recorder.kept)
        with self._trainer(process_seed=2) as trainer:
            trainer.resume()
            if stages.killed > stages.saved:
                self.findings.stage += 1
                self._compare_states(saved, CopiedState.of(trainer.state), "after loading")
                self._compare_saved_weights(saved)
                self._train_again(trainer, lost)
                self.findings.stage += 1
                if stages.last > stages.killed:
                    trainer.train_span(stages.last)
            if comparer and self._slope:
                comparer.compare_slope(*self._slope)
            self._perturb(trainer.state, trainer.state.step)
            self._compare_evaluation(trainer)
        self._channel.close()
        if comparer:
            comparer.compare_scales()

    def _trainer(self, process_seed: int) -> Trainer:
        """Build a trainer as another process would: with global generators elsewhere, on which no
        step may depend.
        """
        trainer = observed_trainer(self._run, self._rank, self._recorder)
        seed_generators(process_seed)
        return trainer

    def _compare(self, whole: WholeStep) -> None:
        """Compare a step on the first worker."""
        assert self._comparer is not None
        if self._is_again:
            return
        stages = self._stages
        if whole.step in (0, stages.begun):
            self._slope = whole.step, whole.weights()
        in_two_precisions = 0, 1, stages.begun, stages.begun + 1, stages.killed, stages.last - 1
        self._comparer.compare(whole, whole.step in in_two_precisions)
        self._num_compared += 1
        report_done(self._num_compared)

    def _whole(self, state: CopiedState, kind: str) -> Whole:
        """Put the workers' slices of one field together, flat tensors by name, with frozen weights
        and buffers. All workers call."""
        return merged(self._fields(state, kind))

    def _fields(self, state: CopiedState, kind: str) -> dict[str, Whole]:
        """Put the workers' slices of one field, of frozen weights and of buffers together. All
        workers call."""
        kinds = (kind, *BESIDE)
        own = {key: value for key, value in state.tensors.items() if key[0] in kinds}
        parts: Any = self._channel.gather(own)
        return join_slices(parts)[0]

    def _perturb(self, state: TrainingState, step: int) -> None:
        """Put a perturbed state of a step in the place of a training's own, and compare what was
        loaded.
        """
        experiment = self._run.experiment
        warmup = float(getattr(experiment.training.clip, "warmup", 1))
        scalars = {
            "adam_step": float(step),
            "loss_scale.cur_scale": LOSS_SCALE,
            "clip.count": warmup,
            "clip.mean": 0.01,
            "clip.variance": 1e-6,
        }
        given = perturbed(
            CopiedState.of(state), experiment.seed, step, experiment.batch.size, scalars
        )
        state.load(given, given.scalars, step, given.position)
        self.findings.stage += 1
        self._compare_states(given, CopiedState.of(state), "after loading")
        self.findings.stage += 1
        if self._comparer:
            self._comparer.jump(step)

    def _compare_states(self, one: CopiedState, two: CopiedState, when: str) -> None:
        """Compare each field of two states, naming the first tensor that differs; then the
        scalars.
        """
        wrong = differing(one.tensors, two.tensors)
        for kind in dict.fromkeys(key[0] for key in (*one.tensors, *two.tensors)):
            where = [f"in {name}" for field, name, _ in wrong if field == kind]
            self.findings.alike("resume", f"{FIELDS.get(kind, kind)} {when}", where)
        first = counters_of(one)
        second = counters_of(two)
        wrong_counters = [
            f"{name} {first.get(name)} and {second.get(name)}"
            for name in {**first, **second}
            if first.get(name) != second.get(name)
        ]
        self.findings.same("resume", f"counters {when}", wrong_counters)

    def _train_again(self, trainer: Trainer, lost: Mapping[int, RecordedStep]) -> None:
        """Do the steps that the kill lost again, and compare all that they took and gave, to the
        bit.
        """
        self._is_again = True
        trainer.train_span(self._stages.killed)
        self._is_again = False
        for step, one in lost.items():
            self.findings.step = step
            two = self._recorder.kept[step]
            again = taken_and_given(two)
            for what, values in taken_and_given(one).items():
                wrong = []
                if values != again[what]:
                    wrong.append("others than before the kill")
                self.findings.same("resume", what, wrong)
            self._compare_states(one.after, two.after, "of steps done again")
        self.findings.step = 0
        if self._comparer:
            self._comparer.jump()

    def _compare_saved_weights(self, saved: CopiedState) -> None:
        """Compare the weights that sampling opens with those of the state's average. All workers
        call.
        """
        weights = self._whole(saved, self._kind)
        if not self._rank.is_first:
            return
        due = {name: each.float() for name, each in weights.items() if name.startswith("network.")}
        try:
            with self._run.checkpoints.open(saved.step) as reader:
                opened = reader.weights(merged=False)
            found = {name: opened[name.removeprefix("network.")].reshape(-1) for name in due}
            wrong = [f"first {name}" for name in differing(due, found)]
        except DamagedCheckpoint as error:  # it lacks weights, such as frozen ones
            wrong = [str(error)]
        self.findings.same("sample", "weights that sampling opens", wrong)

    def _compare_evaluation(self, trainer: Trainer) -> None:
        """Evaluate and sample with the state's engine, and compare with plain networks. All workers
        call.
        """
        state = trainer.state
        size = trainer.stepper.share.pass_size
        before = copied_with_network(state)
        metrics = trainer.evaluation.evaluate(state, size)
        after = copied_with_network(state)
        with state.engine.evaluating():
            sample = draw_sample(self._run, trainer.inputs, state.network)
        changed = [
            f"{kind} of {name}" for kind, name, _ in differing(before.tensors, after.tensors)
        ]
        self.findings.alike("evaluation", "weights, average and moments after it", changed)
        averaged = self._whole(before, self._kind)
        trained = self._whole(before, "master")
        if self._comparer:
            reader = EvaluationComparer(
                self._run, self._comparer.reference, trainer.inputs, size, self.findings, averaged
            )
            reader.compare_metrics(metrics, trained if self._kind == "ema" else None)
            reader.compare_sample(sample)
            reader.compare_labels()
            reader.compare_dropout()
            compare_properties(
                CheckedRun(
                    self._run,
                    self._comparer.reference,
                    trainer.inputs,
                    size,
                    self.findings,
                    averaged,
                )
            )


def compare_properties(checked: CheckedRun) -> None:
    """Compare what needs no second implementation, of networks without an engine: loss, data,
    evaluation and sampler."""
    compare_training_draws(checked)
    compare_components(checked)
    compare_split(checked.run.data, checked.findings)
    compare_held_out(checked)
    compare_sampler(checked)
    compare_guidance(checked)


def merged(fields: Mapping[str, Whole]) -> Whole:
    """Return the tensors of all fields by name."""
    found: Whole = {}
    for each in fields.values():
        found |= each
    return found


def taken_and_given(step: RecordedStep) -> dict[str, str]:
    """Return all that a step took and gave, by what it is; as texts, in which NaN is equal to
    itself.
    """
    return {
        "samples consumed": repr([each.samples for each in step.passes]),
        "draws": repr([(each.key, each.draws) for each in step.passes]),
        "losses": repr([(each.total, each.components) for each in step.passes]),
        "learning rates": repr(step.rates),
        "clipping": repr(step.divisor),
    }


def counters_of(state: CopiedState) -> dict[str, float]:
    """Return a state's step, position and scalars by name."""
    return {"step": state.step, "position": state.position, **state.scalars}


def copied_with_network(state: TrainingState) -> CopiedState:
    """Copy a state, with the weights that the network computes with; ZeRO-3 holds shards, skipped
    here.
    """
    found = CopiedState.of(state)
    if state.engine.stage < 3:
        for name, parameter in state.module.named_parameters():
            found.tensors["computed", name, 0] = parameter.detach().reshape(-1).to("cpu", copy=True)
    return found


def draw_sample(run: TrainingRun, inputs: ModelInputs, network: nn.Module, num: int = 1) -> Tensor:
    """Draw one sample, or several, as an evaluation's grid does, from the same noise at every
    call.
    """
    _, samples = draw_samples(network, run.experiment, run.data, num, inputs)
    return samples.values.detach().cpu()


@dataclass(frozen=True)
class EvaluationComparer:
    """Held-out metrics, samples and conditions of networks without an engine, and their comparison
    with an engine's.
    """

    run: TrainingRun
    reference: ReferenceTrainer
    inputs: ModelInputs
    pass_size: int
    findings: Findings
    weights: Whole
    """Weights that an evaluation takes."""

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.run.experiment.training.precision]

    @property
    def _num_classes(self) -> dict[str, int]:
        return {
            field.name: field.num_classes or 0 for field in self.run.experiment.model.batch_fields()
        }

    def _model(self, dtype: torch.dtype, weights: Whole | None = None) -> ReferenceModel:
        model = self.reference.model(weights or self.weights, dtype)
        model.module.eval()
        return model

    def _metrics(self, dtype: torch.dtype, weights: Whole | None = None) -> dict[str, float]:
        run = self.run
        alone = Rank(0, 1, 0, self.inputs.device)
        model = self._model(dtype, weights)
        with torch.no_grad():
            values = metrics_by_part(
                model.network,
                model.objective,
                run.experiment,
                run.data,
                self.inputs,
                self.pass_size,
                run.experiment.evaluation.limit,
                alone,
                ControlChannel(alone),
            )
        return {f"eval/{name}": value for name, value in values.items()}

    def compare_metrics(self, found: dict[str, float], trained: Whole | None) -> None:
        """Compare each metric with that of plain networks of the same weights, in two precisions,
        in one process; `trained`: the weights in training, whose metrics an evaluation under an
        average must not give."""
        own = self._metrics(self._dtype)
        exact = self._metrics(torch.float64)
        others = self._metrics(self._dtype, trained) if trained else {}
        relative = max(
            (abs(own[name] / value - 1) for name, value in exact.items() if value), default=0.0
        )
        for name in sorted({**own, **found}):
            plain = exact.get(name, math.nan)
            reference = own.get(name, math.nan)
            value = found.get(name, math.nan)
            other = others.get(name, math.nan)
            # Two references of one figure may agree by chance; no more than a rounding is granted
            # for that.
            bound = MARGIN * max(
                abs(reference - plain), min(relative, UNITS[self._dtype]) * abs(plain)
            )
            away = abs(value - reference)
            note = ""
            if not away <= bound and abs(value - other) <= bound:
                note = "the figure is that of the weights in training, not of their average"
            self.findings.near("evaluation", name, away, bound, note)

    def compare_sample(self, found: Tensor) -> None:
        """Compare the engine's sample with the plain network's of its precision, by the distance of
        two precisions.

        A choice between two tokens that are nearly as likely turns with a rounding, and later ones
        with it. In float32 such a choice is rare; in half precision one is granted where the two
        references chose alike.
        """
        with torch.no_grad():
            own = draw_sample(self.run, self.inputs, self._model(self._dtype).network)
            exact = draw_sample(self.run, self.inputs, self._model(torch.float64).network)
        if found.is_floating_point():
            scale = exact.double().norm()
            away = float((found.double() - own.double()).norm() / scale)
            between = float((exact.double() - own.double()).norm() / scale)
            self.findings.near("sample", "one sample", away, MARGIN * max(between, FLOAT32))
        else:
            others = float((found != own).sum())
            by_chance = float((exact != own).sum())
            if self._dtype != torch.float32:
                by_chance = MARGIN * max(by_chance, 1)
            self.findings.near(
                "sample", "tokens of one sample", others, min(by_chance, found.numel() / 2)
            )

    def compare_labels(self) -> None:
        """Compare the labels that the network is called with, in training's loss and in held-out
        metrics of training rows, and in two samples: the rows', and the classes in turn, but for
        those that are dropped."""
        null = self._num_classes.get("label")
        if not null:
            return
        model = self._model(torch.float32)
        batch, noise = self._training_rows(0)
        rows = batch["label"].tolist()
        classes = classes_with_samples(rows_for_samples(self.run.data).columns) or range(null)
        with torch.no_grad(), seen_inputs(model.network, is_label) as seen:
            model.objective.loss(model.network, batch, noise)
            self._compare_seen("of training", seen, rows, null)
            model.objective.metrics(model.network, batch, noise)
            self._compare_seen("of held-out metrics", seen, rows, null)
            draw_sample(self.run, self.inputs, model.network, 2)
            self._compare_seen("of samples", seen, classes[:2], null)

    def _compare_seen(self, what: str, seen: list[Tensor], due: Sequence[int], null: int) -> None:
        """Compare the labels of each call with those due, or with that of dropped ones, and forget
        the calls.
        """
        wrong = [
            f"the network saw {listed(labels, 8)}"
            for labels in [each.tolist() for each in seen] or [["none"]]
            if any(one not in (label, null) for one, label in zip(labels, cycle(due), strict=False))
        ]
        self.findings.same("labels", what, wrong)
        seen.clear()

    def _training_rows(self, number: int) -> tuple[dict[str, Tensor], ReferenceNoise]:
        """Return the first rows of the training data as a batch, and draws of a pass."""
        view = self.run.data.train
        inputs = self.inputs
        raw = {
            field.name: view.gather(field.name, np.arange(ROWS) % len(view))
            for field in inputs.fields
        }
        noise = ReferenceNoise(self.run.experiment.seed, "train", number, 0, ROWS, inputs.device)
        return inputs.prepare_batch(raw, view.columns, noise=noise), noise

    def compare_dropout(self) -> None:
        """Compare who lost its condition, in passes of training's own loss under fresh draws: whose
        predictions another condition, the next class or byte, or features of the other sign, does
        not change."""
        spec = self.run.experiment.model
        rates = [
            float(getattr(spec, name))
            for name in type(spec).model_fields
            if name.endswith("_dropout")
        ]
        rate = max(rates, default=0.0)
        if not rate or len(self._num_classes) < 2:
            return
        model = self._model(torch.float32)
        passes = []
        for number in range(PASSES):
            batch, noise = self._training_rows(number)
            one = predictions(model, batch, noise)
            two = predictions(model, other_conditions(batch, self._num_classes), noise)
            alike = [(a == b).flatten(1).all(1) for a, b in zip(one, two, strict=True)]
            passes.append(torch.stack(alike).all(0).cpu())
        compare_decisions(torch.stack(passes).float(), rate, self.findings)


def predictions(model: ReferenceModel, batch: Tensors, noise: ReferenceNoise) -> list[Tensor]:
    """Return what the network predicts in the calls of a loss."""
    found: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            output = output[0]  # it comes with further tensors
        found.append(output)

    with torch.no_grad(), model.network.register_forward_hook(keep):
        model.objective.loss(model.network, batch, noise)
    return found


def is_label(_: str, values: Tensor) -> bool:
    """Return True for class indices, int64 of one number a sample."""
    return values.dtype == torch.int64 and values.ndim == 1


def other_conditions(batch: Tensors, num_classes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return a batch with the next class or byte, or features of the other sign, for each
    condition; `num_classes` by field of the model, 0 for one without classes."""
    changed = dict(batch)
    for name, values in batch.items():
        if name == "image" or name not in num_classes or values.dtype == torch.bool:
            continue
        classes = num_classes[name]
        if classes and values.ndim > 1:
            changed[name] = torch.where(values > 0, values % (classes - 1) + 1, values)
        elif classes:
            changed[name] = (values + 1) % classes
        elif values.is_floating_point():
            changed[name] = 1 - values
    return changed


def compare_decisions(dropped: Tensor, rate: float, findings: Findings) -> None:
    """Compare decisions (passes, samples) float, 1 where a sample lost its condition, with a rate.

    Decided sample by sample, the number dropped is binomial, and so is the number of passes whose
    samples all agree.
    """
    phase = "dropout of conditions"
    passes, samples = dropped.shape
    num = dropped.numel()
    spread = DEVIATIONS * math.sqrt(rate * (1 - rate) / num) + 1 / num
    share = float(dropped.mean())
    findings.near(
        phase, f"share of {num} samples", abs(share - rate), spread, f"{share:.3f}, not {rate:g}"
    )
    agreeing = float((dropped == dropped[:, :1]).all(1).sum())
    chance = rate**samples + (1 - rate) ** samples
    expected = passes * chance
    bound = DEVIATIONS * math.sqrt(expected * (1 - chance)) + 1
    note = f"{agreeing:.0f} of {passes} passes of {samples} samples; {expected:.1f} by chance"
    findings.near(phase, "passes alike on all samples", max(0.0, agreeing - expected), bound, note)
