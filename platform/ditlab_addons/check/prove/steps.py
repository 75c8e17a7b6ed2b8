"""Every step of a training against the reference: draws, loss, gradient, clipping, update, moments,
weights, averages.

The reference begins each step with the engine's own state, so that a bound is that of one step's
rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from ditlab.averages import START
from ditlab.data.orders import training_order
from ditlab.data.stores.manifest import Column
from ditlab.engine.distributed import Rank
from ditlab.inputs.meta_step import DTYPES
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import derived_seed
from ditlab.training.plan import TrainingRun, learning_rate
from ditlab_addons.check.eject.rules import MOMENTS
from ditlab_addons.check.prove.findings import Findings, differing
from ditlab_addons.check.prove.observing import (
    DrawKey,
    WholeStep,
    prepared_digests,
    sample_digests,
    seed_generators,
)
from ditlab_addons.check.prove.reference import (
    FLOAT32,
    UNITS,
    ReferenceGradient,
    ReferenceNoise,
    ReferenceTrainer,
    ReferenceUpdate,
    Tensors,
    Whole,
    change_sample,
    clip,
    joint_norm,
)
from ditlab_models.contract import BatchField, DetachingObjective, RetiringObjective

MARGIN = 4.0
"""Times that the engine may be as far off as the reference in the run's precision is from the exact
one.
"""
RATE_ROUNDING = 128 * UNITS[torch.float64]
"""Largest difference between two ways of writing a schedule, relative to its highest rate."""
MOST_STEPS = 100_000
"""Steps of a plan whose rates are compared; of a longer one, as many over the whole."""
WIDTH = 1e-6
"""Standard deviation of a weight's displacement. On the families' smallest networks the rest is
then 6e-11 to 1e-7 of a slope near 1, and the rounding about as small; ten times the width has 100
times the rest."""
ROUNDINGS = 100.0
"""Roundings of a loss in float64, as a multiple of its unit: 2 to 16 were seen, and a deeper
network has more.
"""
SCALE = 0.05
"""Factor on a module's gradient, less one, that half precision must not hide over a run's steps."""
LEAST = 1000
"""Parameters of a module whose gradient's scale is measured by itself; smaller ones are measured by
group.
"""
FIELDS = {
    "master": "master weights",
    "exp_avg": "first moments",
    "exp_avg_sq": "second moments",
    "momentum": "momentum",
    "ema": "exponential average",
    "buffer": "buffers",
    "frozen": "frozen weights",
}
"""Fields of a state, in words."""
REPORTED = {
    "loss": ("loss", "mean that is reported"),
    "grad_norm": ("norm", "before clipping"),
    "lr": ("learning rate", "that is reported"),
}
"""Phase and quantity of the numbers that the loop reports, by name."""
WHOLE = "the whole"

DEVIATIONS = 5.0
"""Standard errors by which chance may move a mean: one in two million is further out."""


DueMicroBatch = tuple[dict[str, Tensor], ReferenceNoise]
"""Samples that a forward pass should consume, by spec, order and store, as the loss reads them;
their random numbers.
"""


class StepComparer:
    """Comparison of a run's steps, on the first worker, and what is measured over all of them."""

    def __init__(self, run: TrainingRun, rank: Rank, findings: Findings) -> None:
        experiment = run.experiment
        plan = run.plan
        self._run = run
        self._experiment = experiment
        self._findings = findings
        self._near = findings.near
        self._same = findings.same
        self._on_gpu = rank.device.type == "cuda"
        self.reference = ReferenceTrainer(
            experiment, plan.total_steps, plan.epoch_steps, rank.device, run.data.text
        )
        self._dtype = DTYPES[experiment.training.precision]
        self._objective = self.reference.build().objective
        self.inputs = ModelInputs.from_experiment(
            experiment, run.data.train.columns, rank.device, home=run.home
        )
        self.order = training_order(
            experiment.data, run.data, experiment.batch.size, experiment.seed
        )
        self._rounding: dict[str, float] = {}
        """Largest relative rounding of loss components and modules' gradients that exact steps have
        shown.
        """
        self._previous: dict[str, Whole] = {}
        """State after the step before; empty where another one was put in its place."""
        self._reported: dict[tuple[int, str], tuple[float, float]] = {}
        """Numbers that the loop is to report, with their bounds, by step (from 1) and name."""
        self._ratios: dict[str, list[tuple[float, float]]] = {}
        """Projections on the exact gradient, by module and step: of the engine's gradient less the
        reference's in the same precision, and of the exact one."""
        self._num_updates = 0
        """Updates before the step that is compared, counted here: a counter of the engine's may be
        off.
        """

    def compare(self, whole: WholeStep, is_exact: bool) -> None:
        """Compare one step; `is_exact`: in two precisions, from which the rounding of the others is
        known.
        """
        self._findings.step = whole.step + 1
        due = self.due(whole.step)
        self._compare_before(whole)
        self._compare_samples(whole, due)
        # or what loss and gradient are of is not what the masters say
        if not whole.stale["before"]:
            self._compare_passes(whole, due, is_exact)
        # or the scaled gradient overflowed: rightly skipped
        if whole.gradients or self._dtype != torch.float16:
            self._compare_clipping(whole)
            self._compare_rates(whole)
            self._compare_update(whole)
            self._num_updates += 1
        self._previous = whole.after
        self._findings.step = 0

    def jump(self, step: int | None = None) -> None:
        """Take note that the next step begins with another state: after `step` updates, or as many
        as were counted.
        """
        self._previous = {}
        if step is not None:
            self._num_updates = step

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Compare the numbers that the loop reports of a step (from 1)."""
        self._findings.step = step
        for name, (phase, what) in REPORTED.items():
            if (step, name) in self._reported:
                due, bound = self._reported.pop((step, name))
                self._near(phase, what, abs(values.get(name, math.nan) - due), bound, size=abs(due))
        self._findings.step = 0

    def due(self, step: int) -> list[DueMicroBatch]:
        """Return what step `step` (from 0) is to consume: consecutive samples of the order, and
        their keys.

        Numbers are drawn for a micro-batch of `batch.micro` samples, or for the whole batch where
        that is not set. Samples are read one by one, and compared with the store's columns: what a
        loader does with labels shows.
        """
        experiment = self._experiment
        inputs = self.inputs
        columns = self._run.data.train.columns
        num = experiment.batch.size
        unit = experiment.batch.micro or num
        places = self.order.batches(step, 1).reshape(-1)
        if isinstance(self._objective, RetiringObjective):
            inputs.retire(self._objective.retired_fields(step))
        found = []
        wrong = []
        for first in range(0, num, experiment.micro_size):
            raw = self._stored(places[first : first + experiment.micro_size], step * num + first)
            noise = ReferenceNoise(
                experiment.seed, "train", step, first // unit, unit, inputs.device, first % unit
            )
            batch = inputs.prepare_batch(raw, columns, noise=noise)
            wrong += [
                f"{each.name} is not the column's"
                for each in inputs.fields
                # An encoder reads the fields that are not there.
                if each.name in batch
                and not is_stored(batch[each.name], raw[each.name], each, columns[each.name])
            ]
            batch |= prepare_on_host(self._objective, raw, columns, inputs, noise)
            found.append((batch, noise))
        self._same("draws", "fields as the store has them", wrong)
        for name in getattr(self._objective, "counted", ()):
            mean = torch.stack([batch[name] for batch, _ in found]).sum() / len(found)
            for batch, _ in found:
                batch[name] = mean
        return [
            (batch, replace(noise, draws=prepared_digests(batch, inputs))) for batch, noise in found
        ]

    def _stored(self, places: np.ndarray, position: int) -> dict[str, Tensor]:
        """Return the fields of consecutive samples of the order from `position` on, as the store
        has them, changed as the data's section says."""
        view = self._run.data.train
        rows = view.rows[places]
        raw = {
            each.name: torch.cat([view.store.gather(each.name, row) for row in rows[:, None]])
            for each in self.inputs.fields
        }
        for place, row in enumerate(rows.tolist()):
            change = next((each for each in view.changes if row < each.stop), None)
            if change:
                change_sample(raw, place, change, self._experiment.seed, position + place)
        return raw

    def _compare_before(self, whole: WholeStep) -> None:
        """Compare a step's state with that after the step before, the updates so far and the
        weights computed with.
        """
        if self._previous:
            changed = []
            for kind in sorted({**self._previous, **whole.before}):
                names = differing(self._previous.get(kind, {}), whole.before.get(kind, {}))
                changed += [f"{kind} of {name}" for name in sorted(names)]
            self._same("moments", "state since the step before", changed)
        own = whole.first.before.scalars["adam_step"]
        detail = f"{own:g} in place of {self._num_updates}"
        self._near("moments", "updates so far", abs(own - self._num_updates), 0.0, detail)
        for when, stale in whole.stale.items():
            modules = {module_of(name) for name in stale}
            module = modules.pop() if len(modules) == 1 else ""
            wrong = [f"{when} the step: first {name}" for name in stale]
            self._same("master weights", "weights computed with", wrong, module)

    def _compare_samples(self, whole: WholeStep, due: Sequence[DueMicroBatch]) -> None:
        """Compare the keys of a step's draws, and its samples."""
        keys = Counter([DrawKey.of(noise) for _, noise in due])
        keys.subtract(each.key for each in whole.passes)
        others = [
            f"micro-batch {key.micro_index} from sample {key.start}, step {key.step + 1}"
            for key, number in keys.items()
            if number
        ]
        self._same("draws", "keys of random numbers", others)
        taken = [digest for each in whole.passes for digest in each.samples]
        asked = []
        for batch, _ in due:
            asked += sample_digests(batch, self.inputs.names_read)
        pairs = enumerate(zip_longest(taken, asked))
        others = [f"sample {place} of the batch" for place, (one, two) in pairs if one != two]
        self._same("draws", "samples and their order", others)

    def _compare_passes(
        self, whole: WholeStep, due: Sequence[DueMicroBatch], is_exact: bool
    ) -> None:
        """Compare draws, loss components and gradients of a step's passes."""
        weights = whole.weights()
        scale = whole.first.before.scalars.get("loss_scale.cur_scale", 1.0)
        low = self.reference.gradient(due, weights, self._dtype, scale)
        best = low
        self._compare_again(due[0], weights, low.totals[0])
        if self._dtype != torch.float32:
            best = self.reference.gradient(due, weights, torch.float32)
        elif is_exact:
            best = self.reference.gradient(due, weights, torch.float64)
        by_key = {each.key: each for each in whole.passes}
        wrong = []
        found = []
        for (_, noise), *components in zip(due, best.components, low.components, strict=True):
            taken = by_key.get(DrawKey.of(noise))
            if taken is None:
                continue
            others = {name for name, _ in taken.draws.items() ^ noise.draws.items()}
            wrong += [f"{name} of micro-batch {noise.micro_index}" for name in sorted(others)]
            found.append((taken.components, *components))
        self._same("draws", "random numbers", wrong)
        for name in low.components[0]:
            own, plain, rough = (
                [each[place].get(name, math.nan) for each in found] for place in range(3)
            )
            size = math.hypot(*plain)
            bound = self._bound(f"loss {name}", math.dist(plain, rough), 2 * size, best is not low)
            self._near("loss", name, math.dist(own, plain), bound, size=size)
        totals = np.array([each.total for each in whole.passes] or [0.0])
        mean = float(totals.mean())
        rounding = MARGIN * FLOAT32 * (abs(mean) + float(np.abs(totals).mean()))
        self._reported[whole.step + 1, "loss"] = mean, rounding
        if whole.gradients or self._dtype != torch.float16:
            self._compare_gradients(whole, best, low)

    def _compare_again(self, micro: DueMicroBatch, weights: Whole, before: float) -> None:
        """Compare a micro-batch's loss with that of a model that has computed nothing yet: it is a
        function of inputs and keyed draws, keeps no state, and draws from no global generator,
        which have other seeds here."""
        seed_generators(derived_seed("prove", micro[1].step) % 2**31)
        model = self.reference.model(weights, self._dtype, is_new=True)
        total = float(self.reference.total(self.reference.components(model, *micro)).detach())
        # On a GPU some kernels sum in any order.
        bound = MARGIN * UNITS[self._dtype] * abs(total) if self._on_gpu else 0.0
        away = 0.0
        detail = ""
        if repr(total) != repr(before):  # NaN is equal to itself
            away = abs(total - before)
            detail = (
                f"{before:.9g}, then {total:.9g}: the loss has a state, or draws random "
                "numbers without a key"
            )
        self._near("loss", "the same inputs and draws again", away, bound, detail)

    def _bound(self, key: str, apart: float, size: float, is_exact: bool) -> float:
        """Return what rounding explains: of two precisions, the distance that they have; else the
        largest so far, as in float16, whose small values underflow or not as kernels happen to sum.
        """
        unit = UNITS[self._dtype]
        known = self._rounding.get(key, unit)
        if is_exact:
            known = max(known, apart / max(size, 1e-300))
            self._rounding[key] = known
        if not is_exact or self._dtype == torch.float16:
            return 2 * MARGIN * known * size
        return MARGIN * max(apart, unit * size)

    def _compare_gradients(
        self, whole: WholeStep, best: ReferenceGradient, low: ReferenceGradient
    ) -> None:
        """Compare each module's gradient, in the network's order; then the workers with each
        other.
        """
        is_exact = best is not low
        exact = by_module(best.gradients)
        rough = by_module(low.gradients)
        found = by_module(filled(whole.gradients, best.gradients, 0.0))
        sizes = {module: float(each.norm()) for module, each in by_module(best.sizes).items()}
        apart = {module: distance(rough[module], each) for module, each in exact.items()}
        all_sizes = math.hypot(*sizes.values())
        common = self._bound("gradient", math.hypot(*apart.values()), all_sizes, is_exact) / max(
            all_sizes, 1e-300
        )
        for module, plain in exact.items():
            own = found[module]
            size = float(plain.norm())
            bound = self._bound(f"gradient {module}", apart[module], sizes[module], is_exact)
            bound = max(bound, common * sizes[module])
            detail = f"norm {float(own.norm()):.3g} in place of {size:.3g}"
            self._near("gradient", "by module", distance(own, plain), bound, detail, module, size)
            if self._dtype != torch.float32 and size:
                along = float((own - rough[module]) @ plain)
                self._ratios.setdefault(module, []).append((along, size**2))
        self._findings.alike("gradient", "alike on all workers", whole.disagreeing)

    def compare_scales(self) -> None:
        """Compare the scale of each module's gradient over all steps, in half precision; note what
        is not known.

        It is compared with the reference's in the same precision, as rounding may shrink a gradient
        too; along the exact gradient, and over steps, rounding is far below a step's few per cent.
        """
        numels = Counter[str]()
        for name, own in self.reference.settings.items():
            if module_of(name) in self._ratios:
                numels[module_of(name)] += own.shape.numel()
        for group, modules in gradient_groups(numels).items():
            steps = list(zip(*(self._ratios[module] for module in modules), strict=False))
            ratios = [
                sum(away for away, _ in step) / sum(size for _, size in step) for step in steps
            ]
            error = float(np.std(ratios)) / math.sqrt(max(1, len(ratios) - 1))
            mean = float(np.mean(ratios))
            bound = DEVIATIONS * error + UNITS[self._dtype]
            detail = (
                f"{1 + mean:.4f} times the reference's, with an error of {error:.1g}, over "
                f"{len(ratios)} steps"
            )
            self._near("gradient", "scale over all steps", abs(mean), bound, detail, group)
            if bound > 0.8 * SCALE:
                self._findings.untold.append(
                    f"A gradient of {group} scaled by {1 + SCALE:g} would be within "
                    f"rounding: its scale is known within {bound:.2g}."
                )

    def compare_slope(self, step: int, weights: Whole) -> None:
        """Compare autograd's gradient with differences of the loss at whole weights, by module
        where the whole is off: they see what autograd does not, such as a branch that is detached.
        Note what is not compared: components whose branches are detached on purpose."""
        objective = self._objective
        reference = self.reference
        left_out: Collection[str] = ()
        if isinstance(objective, DetachingObjective):
            left_out = objective.detaching
        self._findings.untold += [
            (
                f"The gradient of {name} skips a branch on purpose, and was not compared "
                "with differences of it."
            )
            for name in left_out
            if objective.weights[name]
        ]
        micro = self.due(step)[0]
        gradients = reference.gradient([micro], weights, torch.float64, left_out=left_out).gradients
        directions = {}
        for name, gradient in gradients.items():
            generator = torch.Generator().manual_seed(
                derived_seed(self._experiment.seed, "prove", name)
            )
            directions[name] = torch.randn(
                gradient.numel(), generator=generator, dtype=torch.float64
            )
        for module in dict.fromkeys([WHOLE, *map(module_of, gradients)]):
            names = [name for name in gradients if module in (WHOLE, module_of(name))]
            losses = []
            for width in (WIDTH, -WIDTH, WIDTH / 2, -WIDTH / 2):
                moved = {name: weights[name].double() + width * directions[name] for name in names}
                model = reference.model({**weights, **moved}, torch.float64)
                with torch.no_grad():
                    losses.append(
                        float(reference.total(reference.components(model, *micro), left_out))
                    )
            slope = (losses[2] - losses[3]) / WIDTH
            wider = (losses[0] - losses[1]) / (2 * WIDTH)
            plain = sum(float(gradients[name] @ directions[name]) for name in names)
            rounding = ROUNDINGS * UNITS[torch.float64] * max(map(abs, losses)) / WIDTH
            bound = MARGIN * (abs(wider - slope) + rounding)
            detail = f"slope {plain:.6g} by autograd, {slope:.6g} by the loss"
            # Relative to what autograd has: modules without any gradient, behind which the branch
            # was cut, come first.
            size = math.inf if module == WHOLE else max(abs(plain), bound)
            what = "against differences of the loss"
            holds = self._near("gradient", what, abs(slope - plain), bound, detail, module, size)
            if holds and module == WHOLE:
                break

    def _compare_clipping(self, whole: WholeStep) -> None:
        """Compare the factor and the statistics of clipping, within the rounding of the norm."""
        spec = self._experiment.training.clip
        norm = joint_norm(whole.gradients.values())
        num = sum(each.numel() for each in whole.gradients.values())
        away = MARGIN * FLOAT32 * norm * max(1.0, math.sqrt(num))
        self._reported[whole.step + 1, "grad_norm"] = norm, away
        before = whole.first.before.scalars
        near = [clip(spec, max(0.0, norm + shift), before) for shift in (0.0, -away, away)]
        factor, statistics = near[0]
        bound = max(abs(each - factor) for each, _ in near) + MARGIN * FLOAT32 * factor
        own = whole.first.divisor
        self._near(
            "clipping", "factor", abs(own - factor), bound, f"divided by {own:.4g}", size=factor
        )
        for name, value in statistics.items():
            found = whole.first.after.scalars.get(name, math.nan)
            room = max(abs(each[name] - value) for _, each in near) + MARGIN * FLOAT32 * abs(value)
            what = name.replace("clip.", "statistics: ")
            self._near("clipping", what, abs(found - value), room, size=abs(value))

    def _compare_rates(self, whole: WholeStep) -> None:
        """Compare what the optimiser stepped each parameter with: weight decay and learning
        rate.
        """
        factor = float(self.reference.rates(np.array([whole.step]))[0])
        decays = []
        rates = []
        distances = [0.0]
        for name, own in self.reference.settings.items():
            lr, decay = whole.first.rates.get(name, (math.nan, math.nan))
            due = own.lr * factor
            if decay != own.weight_decay:
                decays.append(f"{name} ({own.role}) has {decay:g}, not {own.weight_decay:g}")
            away = abs(lr - due) / (due or 1.0)
            if not away <= RATE_ROUNDING:
                rates.append(f"{name} ({own.role}) has {lr:.6g}, not {due:.6g}")
            distances.append(math.inf if math.isnan(away) else away)
        self._same("update", "weight decay of each parameter", decays)
        detail = rates[0] if rates else ""
        self._near("learning rate", "of each parameter", max(distances), RATE_ROUNDING, detail)
        lr = self.reference.spec["optimizer"]["lr"] * factor
        self._reported[whole.step + 1, "lr"] = lr, FLOAT32 * lr

    def _compare_update(self, whole: WholeStep) -> None:
        """Compare each module's update, moments and averages with those of the engine's own
        gradient and state.
        """
        before = whole.before
        after = whole.after
        first = whole.first
        clipped = {name: each.double() / first.divisor for name, each in whole.gradients.items()}
        kernel = torch.bfloat16 if self._on_gpu else torch.float32
        begun = int(first.before.scalars.get(START, 0.0))
        number = self._num_updates + 1
        due = self.reference.update(
            whole.step, number, before, clipped, after["master"], kernel, begun
        )
        for kind in due.values:
            self._compare_field(kind, due, before[kind], after.get(kind, {}))
        held = before.get("frozen", {})
        frozen = sorted(self.reference.frozen.symmetric_difference(held)) + differing(
            held, after.get("frozen", {})
        )
        self._findings.alike("update", "frozen weights", frozen)
        missing = [
            f"the engine's state holds no {kind}"
            for kind in self.reference.decays(whole.step, 1)
            if kind not in before or kind not in after
        ]
        self._same("average", "averages held", missing)
        count = first.after.scalars["adam_step"] - first.before.scalars["adam_step"]
        self._near("moments", "count of updates", abs(count - 1), 0.0)

    def _compare_field(self, kind: str, due: ReferenceUpdate, before: Whole, after: Whole) -> None:
        """Compare each module's new values of a field with those due."""
        values = due.values[kind]
        own = filled(after, values, math.nan)
        found = by_module(own)
        scales = by_module(due.scales[kind])
        old = by_module({name: before[name] for name in values})
        what = FIELDS.get(kind, kind.replace("power_", "power-function, "))
        phase = "moments" if kind in MOMENTS else "average"
        if kind == "master":
            phase = "update"
            what = "by module"
        for module, plain in by_module(values).items():
            bound = MARGIN * FLOAT32 * float(scales[module].norm())
            if kind == "master":
                bound += MARGIN * FLOAT32 * float(found[module].norm())
                wrong = []
                for name in values:
                    if module_of(name) == module:
                        wrong += half_precisions(name, own[name], values[name].float())
                if not self._same("master weights", "held in float32", wrong, module):
                    continue  # its update is rounded with it
            away = distance(found[module], plain)
            self._near(phase, what, away, bound, "", module, distance(plain, old[module]))

    def compare_plan(self, masters: Whole) -> None:
        """Compare what is of the whole run: the weights that it begins with and those that the seed
        gives, and the loop's own learning rate with the schedule's formula."""
        experiment = self._experiment
        fresh = self.reference.fresh
        wrong = [
            name
            for name in (*self.reference.settings, *self.reference.frozen)
            # as the network computes with them
            if name not in masters
            or not torch.equal(masters[name].float(), fresh[name].cpu().to(self._dtype).float())
        ]
        self._findings.alike("master weights", "those of the seed at the start", wrong)
        total = self._run.plan.total_steps
        epoch = self._run.plan.epoch_steps
        steps = np.linspace(0, total - 1, min(total, MOST_STEPS)).astype(np.int64)
        base = experiment.optimizer.lr
        due = base * self.reference.rates(steps)
        loop = [
            learning_rate(experiment.schedule, base, step, total, epoch) for step in steps.tolist()
        ]
        away = np.abs(np.array(loop) - due) / max(
            float(np.abs(due).max()), float(np.finfo(np.float64).tiny)
        )
        bad = np.flatnonzero(~(away <= RATE_ROUNDING))
        detail = ""
        if len(bad):
            first = bad[0]
            detail = f"first at step {steps[first] + 1}: {loop[first]:.6g}, not {due[first]:.6g}"
        what = f"{len(steps):,} of {total:,} steps of the plan"
        self._near("learning rate", what, float(away.max()), RATE_ROUNDING, detail)


def gradient_groups(numels: Mapping[str, int]) -> dict[str, list[str]]:
    """Return modules by group: each of LEAST parameters or more by itself, of smaller ones as many
    that follow one another, in the network's order, as have so many together."""
    groups: dict[str, list[str]] = {}
    small: list[str] = []
    for module, num in numels.items():
        if num >= LEAST:
            groups[module] = [module]
            continue
        small.append(module)
        if sum(numels[each] for each in small) >= LEAST:
            groups[f"{small[0]} to {module}"] = small
            small = []
    if small:
        groups["small modules"] = small
    return groups


def is_stored(values: Tensor, raw: Tensor, field: BatchField, column: Column) -> bool:
    """Return True if a field's values are those of its column, brought from the column's range to
    that of the field; padding may be cut."""
    due = raw.double()
    wanted = field.value_range
    stored = column.value_range
    if wanted and stored:
        due = wanted[0] + (due - stored[0]) * (wanted[1] - wanted[0]) / (stored[1] - stored[0])
    if values.ndim > 1:
        due = due[:, : values.shape[1]]
    room = 1e-6 if values.is_floating_point() else 0.0
    return torch.allclose(values.cpu().double(), due, rtol=1e-6, atol=room)


def half_precisions(name: str, own: Tensor, due: Tensor) -> list[str]:
    """Return a clause for each half precision that holds a parameter's float32 values exactly, and
    not those due.
    """
    return [
        f"{name} holds {str(dtype).removeprefix('torch.')}"
        for dtype in (torch.bfloat16, torch.float16)
        if own.numel() > 1
        and torch.equal(own.to(dtype).float(), own)
        and not torch.equal(due.to(dtype).float(), due)
    ]


def module_of(name: str) -> str:
    """Return the path of the module that has a parameter."""
    return name.rpartition(".")[0]


def by_module(values: Tensors) -> Whole:
    """Return one float64 vector for each module, in the order given: the flat values of its
    parameters.
    """
    parts: dict[str, list[Tensor]] = {}
    for name, each in values.items():
        parts.setdefault(module_of(name), []).append(each.double())
    return {module: torch.cat(each) for module, each in parts.items()}


def filled(values: Tensors, like: Tensors, value: float) -> Whole:
    """Return the values of each name of `like`; where they are missing, `value` in their place."""
    return {name: values.get(name, torch.full_like(each, value)) for name, each in like.items()}


def distance(one: Tensor, two: Tensor) -> float:
    """Return the L2 norm of a difference."""
    return float((one - two).norm())
