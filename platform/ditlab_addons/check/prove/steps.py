"""Every step of a training against the reference: draws, loss, gradient, clipping, update, moments, weights, averages.

The reference begins each step with the engine's own state, so that a bound is that of one step's rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.averages import START
from ditlab.data.orders import training_order
from ditlab.engine.distributed import Rank
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import derived_seed
from ditlab.training.plan import TrainingRun, learning_rate
from ditlab_addons.check.prove.findings import Findings, differing
from ditlab_addons.check.prove.observing import (
    RecordedPass,
    RecordingNoise,
    WholeStep,
    draw_key,
    prepared_digests,
    sample_digests,
    seed_generators,
)
from ditlab_addons.check.prove.reference import (
    FLOAT32,
    MOMENTS,
    PRECISIONS,
    UNITS,
    ReferenceGradient,
    ReferenceNoise,
    ReferenceTrainer,
    ReferenceUpdate,
    Whole,
    change_sample,
    clip,
    joint_norm,
)
from ditlab_models.contract import DetachingObjective, RetiringObjective

MARGIN = 4.0
"""Times that the engine may be as far off as the reference in the run's precision is from the exact one."""
RATE_ROUNDING = 128 * UNITS[torch.float64]
"""Largest difference between two ways of writing a schedule, relative to its highest rate."""
MOST_COMPARED = 2_000_000
"""Samples of an epoch that are compared with one another; a longer epoch is left to the order's own tests."""
MOST_STEPS = 100_000
"""Steps of a plan whose rates are compared; of a longer one, as many over the whole."""
WIDTH = 1e-6
"""Standard deviation of a weight's displacement. On the families' smallest networks the rest is then 6e-11 to 1e-7 of
a slope near 1, and the rounding about as small; ten times the width has 100 times the rest."""
ROUNDINGS = 100.0
"""Roundings of a loss in float64, as a multiple of its unit: 2 to 16 were seen, and a deeper network has more."""
SCALE = 0.05
"""Factor on a module's gradient, less one, that half precision must not hide over a run's steps."""
LEAST = 1000
"""Parameters of a module whose gradient's scale is measured by itself; smaller ones are measured by group."""
FIELDS = {
    "master": "master weights", "exp_avg": "first moments", "exp_avg_sq": "second moments", "momentum": "momentum",
    "ema": "exponential average", "buffer": "buffers", "frozen": "frozen weights",
}  # fmt: skip
"""Fields of a state, in words."""
ValueRange = tuple[float, float] | None
"""Lowest and highest value of a field; None where it has no range."""
DEVIATIONS = 5.0
"""Standard errors by which chance may move a mean: one in two million is further out."""


@dataclass(frozen=True)
class DueMicroBatch:
    """Samples that a forward pass should consume, by spec, order and store, and their random numbers."""

    batch: dict[str, Tensor]
    """All that the loss reads."""
    noise: ReferenceNoise
    samples: list[str]
    """Digest of each sample."""


class StepComparer:
    """Comparison of a run's steps, on the first worker, and what is measured over all of them."""

    def __init__(self, run: TrainingRun, rank: Rank, findings: Findings) -> None:
        experiment, plan, self._device = run.experiment, run.plan, rank.device
        self._run, self._findings, self._on_gpu = run, findings, rank.device.type == "cuda"
        self.reference = ReferenceTrainer(experiment, plan.total_steps, plan.epoch_steps, rank.device, run.data.text)
        self._dtype = PRECISIONS[experiment.training.precision]
        self._objective = self.reference.build().objective
        self.inputs = ModelInputs.from_experiment(experiment, run.data.train.columns, rank.device, home=run.home)
        self._order = training_order(experiment.data, run.data, experiment.batch.size, experiment.seed)
        self._rounding: dict[str, float] = {}
        """Largest relative rounding of loss components and modules' gradients that exact steps have shown."""
        self._previous = dict[str, Whole]()
        """State after the step before; empty where another one was put in its place."""
        self._reported: dict[int, dict[str, tuple[float, float]]] = {}
        """Numbers that the loop is to report, with their bounds, by step (from 1)."""
        self._ratios: dict[str, list[tuple[float, float]]] = {}
        """Projections on the exact gradient, by module and step: of the engine's gradient less the reference's in the
        same precision, and of the exact one."""
        self._num_updates = 0
        """Updates before the step that is compared, counted here: a counter of the engine's may be off."""

    def compare(self, whole: WholeStep, is_exact: bool) -> None:
        """Compare one step; `is_exact`: in two precisions, from which the rounding of the others is known."""
        self._findings.step = whole.step + 1
        self._reported[whole.step + 1] = {}
        due = self.due(whole.step)
        self._compare_before(whole, due)
        if not whole.stale["before"]:  # or what loss and gradient are of is not what the masters say
            self._compare_passes(whole, due, is_exact)
        if whole.gradients or self._dtype != torch.float16:  # or the scaled gradient overflowed: rightly skipped
            self._compare_clipping(whole)
            self._compare_rates(whole)
            self._compare_update(whole)
            self._num_updates += 1
        self._previous = whole.after
        self._findings.step = 0

    def jump(self, step: int | None = None) -> None:
        """Take note that the next step begins with another state: after `step` updates, or as many as were counted."""
        self._num_updates, self._previous = self._num_updates if step is None else step, {}

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Compare the numbers that the loop reports of a step (from 1)."""
        phases = {"loss": ("loss", "mean that is reported"), "grad_norm": ("norm", "before clipping")}
        self._findings.step = step
        for name, (due, bound) in self._reported.pop(step, {}).items():
            phase, what = phases.get(name, ("learning rate", "that is reported"))
            self._findings.near(phase, what, abs(values.get(name, math.nan) - due), bound, size=abs(due))
        self._findings.step = 0

    def due(self, step: int) -> list[DueMicroBatch]:
        """Return what step `step` (from 0) is to consume: consecutive samples of the order, and their keys.

        Numbers are drawn for a micro-batch of `batch.micro` samples, or for the whole batch where that is not set.
        Samples are read one by one, and compared with the store's columns: what a loader does with labels shows.
        """
        experiment, inputs = self._run.experiment, self.inputs
        columns, objective = self._run.data.train.columns, self._objective
        size, unit = experiment.micro_size, experiment.batch.micro or experiment.batch.size
        places = self._order.batches(step, 1).reshape(-1)
        if isinstance(objective, RetiringObjective):
            inputs.retire(objective.retired_fields(step))
        found, wrong = [], list[str]()
        for first in range(0, experiment.batch.size, size):
            raw = self._stored(places[first : first + size], step * experiment.batch.size + first)
            noise = ReferenceNoise(experiment.seed, "train", step, first // unit, unit, first % unit, self._device)
            batch = inputs.prepare_batch(raw, columns, noise=noise)
            fields = [each for each in inputs.fields if each.name in batch]  # an encoder reads the others
            wrong += [
                f"{each.name} is not the column's"
                for each in fields
                if not is_stored(batch[each.name], raw[each.name], each.value_range, columns[each.name].value_range)
            ]
            batch |= prepare_on_host(objective, raw, columns, inputs, noise)  # type: ignore[arg-type]
            found.append(DueMicroBatch(batch, noise, sample_digests(batch, inputs.names_read)))
        self._findings.same("draws", "fields as the store has them", wrong)
        return found

    def _stored(self, places: np.ndarray, position: int) -> dict[str, Tensor]:
        """Return the fields of consecutive samples of the order from `position` on, as the store has them, changed as
        the data's section says."""
        view = self._run.data.train
        rows = view.rows[places]
        raw = {
            each.name: torch.cat([view.store.gather(each.name, rows[n : n + 1]) for n in range(len(rows))])
            for each in self.inputs.fields
        }
        for n, row in enumerate(rows.tolist()):
            change = next((each for each in view.changes if row < each.stop), None)
            if change:
                change_sample(raw, n, change, self._run.experiment.seed, position + n)
        return raw

    def _compare_before(self, whole: WholeStep, due: Sequence[DueMicroBatch]) -> None:
        """Compare a step's state with that after the step before, the updates so far, the weights computed with, the
        keys of its draws and its samples."""
        findings, own = self._findings, whole.first.before.scalars["adam_step"]
        if self._previous:
            changed = [
                f"{kind} of {name}"
                for kind in sorted({**self._previous, **whole.before})
                for name in sorted(differing(self._previous.get(kind, {}), whole.before.get(kind, {})))
            ]
            findings.same("moments", "state since the step before", changed)
        detail = f"{own:g} in place of {self._num_updates}"
        findings.near("moments", "updates so far", abs(own - self._num_updates), 0.0, detail)
        for when, stale in whole.stale.items():
            modules = list(by_module(stale))
            wrong = [f"{when} the step: first {name}" for name in stale]
            findings.same("master weights", "weights computed with", wrong, modules[0] if len(modules) == 1 else "")
        self._compare_samples(whole.passes, due)

    def _compare_samples(self, passes: Sequence[RecordedPass], due: Sequence[DueMicroBatch]) -> None:
        """Compare the keys of a step's draws, and its samples."""
        expected, found = [draw_key(micro.noise) for micro in due], [each.key for each in passes]
        keys = [key for key in expected if found.count(key) != 1] + [key for key in found if key not in expected]
        places = [f"micro-batch {key[3]} from sample {key[5]}, step {key[2] + 1}" for key in keys]
        self._findings.same("draws", "keys of random numbers", places)
        taken, asked = (chain.from_iterable(each.samples for each in parts) for parts in (passes, due))
        pairs = enumerate(zip_longest(taken, asked))
        others = [f"sample {place} of the batch" for place, (one, two) in pairs if one != two]
        self._findings.same("draws", "samples and their order", others)

    def _compare_passes(self, whole: WholeStep, due: Sequence[DueMicroBatch], is_exact: bool) -> None:
        """Compare draws, loss components and gradients of a step's passes."""
        weights = whole.weights()
        scale = whole.first.before.scalars.get("loss_scale.cur_scale", 1.0)
        draws = [prepared_digests(micro.batch, self.inputs) for micro in due]
        passes: list[Any] = [
            (each.batch, RecordingNoise(each.noise, kept)) for each, kept in zip(due, draws, strict=True)
        ]
        low = best = self.reference.gradient(passes, weights, self._dtype, scale)
        self._compare_again(due[0], weights, low.totals[0])
        if is_exact or self._dtype != torch.float32:
            finer = torch.float64 if self._dtype == torch.float32 else torch.float32
            best = self.reference.gradient([(micro.batch, micro.noise) for micro in due], weights, finer)
        by_key = {each.key: each for each in whole.passes}
        pairs = [(place, by_key[key]) for place, micro in enumerate(due) if (key := draw_key(micro.noise)) in by_key]
        wrong = [
            f"{name} of micro-batch {each.key[3]}"
            for place, each in pairs
            for name in sorted({name for name, _ in each.draws.items() ^ draws[place].items()})
        ]
        self._findings.same("draws", "random numbers", wrong)
        self._compare_losses(whole, pairs, best, low)
        if whole.gradients or self._dtype != torch.float16:
            self._compare_gradients(whole, best, low)

    def _compare_losses(
        self,
        whole: WholeStep,
        pairs: Sequence[tuple[int, RecordedPass]],
        best: ReferenceGradient,
        low: ReferenceGradient,
    ) -> None:
        """Compare the loss components of passes, each with its place in the step; note what the loop is to report."""
        for name in low.components[0]:
            found = [each.components.get(name, math.nan) for _, each in pairs]
            plain, rough = ([each.components[place][name] for place, _ in pairs] for each in (best, low))
            size = math.hypot(*plain)
            bound = self._bound(f"loss {name}", math.dist(plain, rough), 2 * size, best is not low)
            self._findings.near("loss", name, math.dist(found, plain), bound, size=size)
        totals = [each.total for each in whole.passes]
        num = max(1, len(totals))
        mean = sum(totals) / num
        self._reported[whole.step + 1]["loss"] = mean, MARGIN * FLOAT32 * (abs(mean) + sum(map(abs, totals)) / num)

    def _compare_again(self, micro: DueMicroBatch, weights: Whole, before: float) -> None:
        """Compare a micro-batch's loss with that of a model that has computed nothing yet: it is a function of inputs
        and keyed draws, keeps no state, and draws from no global generator, which have other seeds here."""
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        seed_generators(derived_seed("prove", micro.noise.step) % 2**31)
        model = self.reference.model(weights, self._dtype, is_new=True)
        total = float(self.reference.total(self.reference.components(model, micro.batch, micro.noise)).detach())
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        # On a GPU some kernels sum in any order.
        bound = MARGIN * UNITS[self._dtype] * abs(total) if self._on_gpu else 0.0
        is_same = total == before or (math.isnan(total) and math.isnan(before))
        detail = f"{before:.9g}, then {total:.9g}: the loss has a state, or draws random numbers without a key"
        away = 0.0 if is_same else abs(total - before)
        self._findings.near("loss", "the same inputs and draws again", away, bound, "" if is_same else detail)

    def _bound(self, key: str, apart: float, size: float, is_exact: bool) -> float:
        """Return what rounding explains: of two precisions, the distance that they have; else the largest so far, as
        in float16, whose small values underflow or not as kernels happen to sum."""
        unit = UNITS[self._dtype]
        if is_exact:
            self._rounding[key] = max(self._rounding.get(key, 0.0), apart / max(size, 1e-300))
        if not is_exact or self._dtype == torch.float16:
            return 2 * MARGIN * max(self._rounding.get(key, 0.0), unit) * size
        return MARGIN * max(apart, unit * size)

    def _compare_gradients(self, whole: WholeStep, best: ReferenceGradient, low: ReferenceGradient) -> None:
        """Compare each module's gradient, in the network's order; then the workers with each other."""
        modules, is_exact = by_module(best.gradients), best is not low
        sizes = {module: math.hypot(*(best.sizes[name] for name in names)) for module, names in modules.items()}
        apart = {
            module: joint_norm(low.gradients[name] - best.gradients[name] for name in names)
            for module, names in modules.items()
        }
        all_sizes = math.hypot(*sizes.values())
        common = self._bound("gradient", math.hypot(*apart.values()), all_sizes, is_exact) / max(all_sizes, 1e-300)
        for module, names in modules.items():
            plain = {name: best.gradients[name] for name in names}
            found = {name: whole.gradients.get(name, torch.zeros_like(plain[name])).double() for name in names}
            distance = joint_norm(found[name] - plain[name] for name in names)
            bound = self._bound(f"gradient {module}", apart[module], sizes[module], is_exact)
            size, own = joint_norm(plain.values()), joint_norm(found.values())
            detail = f"norm {own:.3g} in place of {size:.3g}"
            bound = max(bound, common * sizes[module])
            self._findings.near("gradient", "by module", distance, bound, detail, module, size)
            if self._dtype != torch.float32 and size:
                along = [sum(float(each[name] @ plain[name]) for name in names) for each in (found, low.gradients)]
                self._ratios.setdefault(module, []).append((along[0] - along[1], size**2))
        self._findings.same("gradient", "alike on all workers", [f"first {name}" for name in whole.disagreeing])

    def compare_scales(self) -> list[str]:
        """Compare the scale of each module's gradient over all steps, in half precision; return what cannot be told.

        It is compared with the reference's in the same precision, as rounding may shrink a gradient too; along the
        exact gradient, and over steps, rounding is far below a step's few per cent.
        """
        untold, settings = [], self.reference.settings
        numels = {
            module: sum(settings[name].shape.numel() for name in names)
            for module, names in by_module(settings).items()
            if module in self._ratios
        }
        for group, modules in gradient_groups(numels).items():
            steps = list(zip(*(self._ratios[module] for module in modules), strict=False))
            ratios = [sum(away for away, _ in step) / sum(size for _, size in step) for step in steps]
            error = float(np.std(ratios)) / math.sqrt(max(1, len(ratios) - 1))
            mean, bound = float(np.mean(ratios)), DEVIATIONS * error + UNITS[self._dtype]
            detail = f"{1 + mean:.4f} times the reference's, with an error of {error:.1g}, over {len(ratios)} steps"
            self._findings.near("gradient", "scale over all steps", abs(mean), bound, detail, group)
            if bound > 0.8 * SCALE:
                untold.append(
                    f"A gradient of {group} scaled by {1 + SCALE:g} could not be told from rounding: its scale is "
                    f"known within {bound:.2g}."
                )
        return untold

    def compare_slope(self, step: int, weights: Whole) -> list[str]:
        """Compare autograd's gradient with differences of the loss at whole weights, by module where the whole is off:
        they see what autograd does not, such as a branch that is detached. Return what cannot be told: components whose
        branches are detached on purpose."""
        own, reference = self._objective, self.reference
        left_out = own.detaching if isinstance(own, DetachingObjective) else ()
        untold = [
            f"The gradient of {name} leaves a branch out on purpose, and was not compared with differences of it."
            for name in left_out
            if own.weights[name]
        ]
        micro, directions = self.due(step)[0], dict[str, Tensor]()
        passes = [(micro.batch, micro.noise)]
        gradients = reference.gradient(passes, weights, torch.float64, left_out=left_out).gradients
        for name, gradient in gradients.items():
            generator = torch.Generator().manual_seed(derived_seed(self._run.experiment.seed, "prove", name))
            directions[name] = torch.randn(gradient.numel(), generator=generator, dtype=torch.float64)
        for module, names in {"the whole": list(gradients), **by_module(gradients)}.items():
            losses = []
            for width in (WIDTH, -WIDTH, WIDTH / 2, -WIDTH / 2):
                moved = {name: weights[name].double() + width * directions[name] for name in names}
                model = reference.model({**weights, **moved}, torch.float64)
                with torch.no_grad():
                    components = reference.components(model, micro.batch, micro.noise)
                losses.append(float(reference.total(components, left_out)))
            slopes = (losses[0] - losses[1]) / (2 * WIDTH), (losses[2] - losses[3]) / WIDTH
            plain = sum(float(gradients[name] @ directions[name]) for name in names)
            rounding = ROUNDINGS * UNITS[torch.float64] * max(map(abs, losses)) / WIDTH
            bound = MARGIN * (abs(slopes[0] - slopes[1]) + rounding)
            detail = f"slope {plain:.6g} by autograd, {slopes[1]:.6g} by the loss"
            # Relative to what autograd has: modules without any gradient, behind which the branch was cut, come first.
            size = max(abs(plain), bound) if module != "the whole" else math.inf
            what = "against differences of the loss"
            holds = self._findings.near("gradient", what, abs(slopes[1] - plain), bound, detail, module, size)
            if holds and module == "the whole":
                break
        return untold

    def _compare_clipping(self, whole: WholeStep) -> None:
        """Compare the factor and the statistics of clipping, within the rounding of the norm."""
        spec, before = self.reference.spec["training"]["clip"], whole.first.before.scalars
        norm, num = joint_norm(whole.gradients.values()), sum(each.numel() for each in whole.gradients.values())
        away = MARGIN * FLOAT32 * norm * max(1.0, math.sqrt(num))
        self._reported[whole.step + 1]["grad_norm"] = norm, away
        (factor, statistics), *near = (clip(spec, max(0.0, norm + shift), before) for shift in (0.0, -away, away))
        bound = max(abs(each - factor) for each, _ in near) + MARGIN * FLOAT32 * factor
        own = whole.first.divisor
        self._findings.near("clipping", "factor", abs(own - factor), bound, f"divided by {own:.4g}", size=factor)
        for name, value in statistics.items():
            found = whole.first.after.scalars.get(name, math.nan)
            room = max(abs(each[name] - value) for _, each in near) + MARGIN * FLOAT32 * abs(value)
            what = name.replace("clip.", "statistics: ")
            self._findings.near("clipping", what, abs(found - value), room, size=abs(value))

    def _compare_rates(self, whole: WholeStep) -> None:
        """Compare what the optimiser stepped each parameter with: weight decay and learning rate."""
        factor = float(self.reference.rates(np.array([whole.step]))[0])
        decays, rates, largest = [], [], 0.0
        for name, own in self.reference.settings.items():
            lr, decay = whole.first.rates.get(name, (math.nan, math.nan))
            if decay != own.weight_decay:
                decays.append(f"{name} ({own.role}) has {decay:g}, not {own.weight_decay:g}")
            away = abs(lr - own.lr * factor) / (own.lr * factor or 1.0)
            if not away <= RATE_ROUNDING:
                rates.append(f"{name} ({own.role}) has {lr:.6g}, not {own.lr * factor:.6g}")
            largest = max(largest, away) if not math.isnan(away) else math.inf
        self._findings.same("update", "weight decay of each parameter", decays)
        self._findings.near("learning rate", "of each parameter", largest, RATE_ROUNDING, "".join(rates[:1]))
        lr = self.reference.spec["optimizer"]["lr"] * factor
        self._reported[whole.step + 1]["lr"] = lr, FLOAT32 * lr

    def _compare_update(self, whole: WholeStep) -> None:
        """Compare each module's update, moments and averages with those of the engine's own gradient and state."""
        before, after, findings = whole.before, whole.after, self._findings
        clipped = {name: each.double() / whole.first.divisor for name, each in whole.gradients.items()}
        kernel = torch.bfloat16 if self._on_gpu else torch.float32
        begun, number = int(whole.first.before.scalars.get(START, 0.0)), self._num_updates + 1
        due = self.reference.update(whole.step, number, before, clipped, after["master"], kernel, begun)
        for kind in due.values:
            self._compare_field(kind, due, before[kind], after.get(kind, {}))
        held, later = (each.get("frozen", {}) for each in (before, after))
        frozen = sorted(self.reference.frozen.symmetric_difference(held)) + differing(held, later)
        findings.same("update", "frozen weights", [f"first {name}" for name in frozen])
        missing = [kind for kind in self.reference.decays(whole.step, 1) if kind not in before or kind not in after]
        findings.same("average", "averages held", [f"the engine's state holds no {kind}" for kind in missing])
        count = whole.first.after.scalars["adam_step"] - whole.first.before.scalars["adam_step"]
        findings.near("moments", "count of updates", abs(count - 1), 0.0)

    def _compare_field(self, kind: str, due: ReferenceUpdate, before: Whole, after: Whole) -> None:
        """Compare each module's new values of a field with those due."""
        phase, what = updated_quantity(kind)
        values = due.values[kind]
        own = {name: after.get(name, torch.full_like(each, math.nan)) for name, each in values.items()}
        for module, names in by_module(values).items():
            bound = MARGIN * FLOAT32 * joint_norm(due.scales[kind][name] for name in names)
            if kind == "master":
                bound += MARGIN * FLOAT32 * joint_norm(own[name] for name in names)
                wrong = [each for name in names for each in half_precisions(name, own[name], values[name])]
                if not self._findings.same("master weights", "held in float32", wrong, module):
                    continue  # its update is rounded with it
            distance = joint_norm(own[name].double() - values[name] for name in names)
            moved = joint_norm(values[name] - before[name].double() for name in names)
            self._findings.near(phase, what, distance, bound, "", module, moved)

    def compare_plan(self, masters: Whole, last: int) -> None:
        """Compare what is of the whole run: the weights that it begins with and those that the seed gives, the loop's
        own learning rate with the schedule's formula, and the samples of the epoch of step `last` with one another."""
        experiment, plan, findings, fresh = self._run.experiment, self._run.plan, self._findings, self.reference.fresh
        wrong = [
            f"first {name}"
            for name in (*self.reference.settings, *self.reference.frozen)
            # as the network computes with them
            if name not in masters or not torch.equal(masters[name].float(), fresh[name].cpu().to(self._dtype).float())
        ]
        findings.same("master weights", "those of the seed at the start", wrong)
        total = plan.total_steps
        steps = np.linspace(0, total - 1, min(total, MOST_STEPS)).astype(np.int64)
        base, spec = self.reference.spec["optimizer"]["lr"], experiment.schedule
        due = base * self.reference.rates(steps)
        loop = [learning_rate(spec, experiment.optimizer.lr, int(step), total, plan.epoch_steps) for step in steps]
        away = np.abs(np.array(loop) - due) / max(float(np.abs(due).max()), float(np.finfo(np.float64).tiny))
        bad = np.flatnonzero(~(away <= RATE_ROUNDING))
        detail = f"first at step {steps[bad[0]] + 1}: {loop[bad[0]]:.6g}, not {due[bad[0]]:.6g}" if len(bad) else ""
        what = f"{len(steps):,} of {total:,} steps of the plan"
        findings.near("learning rate", what, float(away.max()), RATE_ROUNDING, detail)
        if plan.epoch_steps and plan.epoch_steps * experiment.batch.size <= MOST_COMPARED:
            first = (last - 1) // plan.epoch_steps * plan.epoch_steps
            samples = self._order.batches(first, last - first).reshape(-1)
            twice = ["a sample comes again"] * (len(samples) - len(np.unique(samples)))
            findings.same("draws", "samples that come twice in an epoch", twice)


def gradient_groups(numels: Mapping[str, int]) -> dict[str, list[str]]:
    """Return modules by group: each of LEAST parameters or more by itself, of smaller ones as many that follow one
    another, in the network's order, as have so many together."""
    groups, small = dict[str, list[str]](), list[str]()
    for module, num in numels.items():
        if num >= LEAST:
            groups[module] = [module]
            continue
        small.append(module)
        if sum(numels[each] for each in small) >= LEAST:
            groups[f"{small[0]} to {module}"], small = small, []
    return {**groups, "small modules": small} if small else groups


def is_stored(values: Tensor, raw: Tensor, wanted: ValueRange, stored: ValueRange) -> bool:
    """Return True if a field's values are those of its column, brought from the range `stored` to the range `wanted`;
    padding may be cut."""
    due = raw.double()
    if wanted and stored:
        due = wanted[0] + (due - stored[0]) * (wanted[1] - wanted[0]) / (stored[1] - stored[0])
    if values.ndim > 1:
        due = due[:, : values.shape[1]]
    values = values.cpu()
    return torch.allclose(values.double(), due, rtol=1e-6, atol=1e-6 if values.is_floating_point() else 0.0)


def updated_quantity(kind: str) -> tuple[str, str]:
    """Return the phase of a proof, and the quantity in words, of a field that an update changes."""
    if kind == "master":
        return "update", "by module"
    return "moments" if kind in MOMENTS else "average", FIELDS.get(kind, kind.replace("power_", "power-function, "))


def half_precisions(name: str, own: Tensor, due: Tensor) -> list[str]:
    """Return a clause for each half precision that holds all values of a parameter exactly, and not those due."""
    return [
        f"{name} holds {str(dtype).removeprefix('torch.')}"
        for dtype in (torch.bfloat16, torch.float16)
        if own.numel() > 1 and fits(own, dtype) and not fits(due.float(), dtype)
    ]


def fits(values: Tensor, dtype: torch.dtype) -> bool:
    """Return True if a half precision holds all of some float32 values exactly."""
    return torch.equal(values.to(dtype).float(), values)


def by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each module, in the order given."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules
