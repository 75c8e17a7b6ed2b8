"""Properties that a training has whatever its code is: they need no second implementation, and see
mistakes in what engine and reference share.

Roles of parameters by their module's class, orders of epochs, laws of random numbers and times,
loss components by themselves, held-out rows and their draws, evaluations of a sampler, and
guidance.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.data.loading.order import Order
from ditlab.data.splits import DataSplits
from ditlab.data.stores.row_changes import change_rows
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.training.evaluation import metrics_by_part
from ditlab.training.plan import TrainingRun
from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.reference import (
    ReferenceModel,
    ReferenceNoise,
    ReferenceTrainer,
    Tensors,
    Whole,
    tensor_digest,
)
from ditlab_addons.check.prove.steps import DEVIATIONS, is_stored
from ditlab_models.contract import (
    DetachingObjective,
    GuidedSampler,
    KnownTargetObjective,
    Role,
    RoledNetwork,
    SamplingSpec,
)
from ditlab_models.finetuning import matches
from ditlab_models.processes.specs import uniform_cdf

ROWS = 32
PASSES = 80
"""Rows of a pass of training's loss, and passes: 2,560 times are drawn."""
ALPHA = 1e-7
"""Chance that a sample of a law is further from it than the bound."""
ALIKE = 8
"""Rows that may share one number with another row by chance: 2,560 numbers of 24 bits have 0.2 such
pairs."""
LEAST_SIZE = 4
"""Numbers of a row that no other row has by chance."""
REPEATED = 0.1
"""Share of a row's numbers that others of the row may equal."""
MOST_BOUND = 0.5
"""Largest bound on the distance of two distributions that tells anything."""
LEAST_ROWS = 10
"""Rows of an epoch whose order two epochs share by chance less than once in three million times."""
MOST_ORDERED = 2**20
"""Samples of an epoch whose order is looked at."""
MOST_ROWS = 2**22
"""Training rows that are looked for among the held-out ones."""
WIDTH = 1e-5
"""Length of the step along a component's gradient, in float64."""
SLOPE = 1e-3
"""Share by which the loss may fall more or less than its gradient says, its curvature."""
NEAR = 0.01
"""Distance of outputs near the targets, relative to these."""
SCALES = (0.0, 1.0, 2.0, 3.0)
"""Scales of guidance at which a prediction is made."""
LINEAR = 1e-9
"""Distance, relative to the predictions, that float64 rounding explains in guidance."""
TIME_ROUNDING = 1e-5
"""Distance of a time that float32 explains, relative to the largest one."""
MOST_NAMES = 6
"""Names of parameters, or modules, that a sentence lists."""
NORMAL = NormalDist()
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
WEIGHT_ROLES: Mapping[type[nn.Module], Role] = {
    nn.Embedding: "embedding",
    nn.Linear: "matrix",
    nn.Conv1d: "convolution",
    nn.Conv2d: "convolution",
    nn.Conv3d: "convolution",
}
"""Role of a weight by its module's class, where the network names no other."""
NUM_DRAWN = 16
"""Numbers of each row whose law is looked at."""
MOST_DRAWN = 10_000
"""Numbers of a name whose law is looked at."""


def kolmogorov_distance(values: np.ndarray, cdf: Callable[[float], float]) -> float:
    """Return the largest distance of the distribution of values (n,) from a distribution function;
    one with steps counts at both sides of each."""
    points, counts = np.unique(values.astype(np.float64), return_counts=True)
    upto = np.cumsum(counts) / len(values)
    below = upto - counts / len(values)
    law = np.array([cdf(float(each)) for each in points])
    before = np.array([cdf(float(each)) for each in np.nextafter(points, -np.inf)])
    return float(max(np.abs(upto - law).max(), np.abs(before - below).max()))


def kolmogorov_bound(num: int) -> float:
    """Return the distance that so many independent values exceed with a chance of ALPHA (Massart
    1990, Ann. Probab. 18, 1269: 2 exp(-2 n d^2))."""
    return math.sqrt(math.log(2 / ALPHA) / (2 * num))


class WatchedNoise:
    """A noise source that keeps what was drawn from it, by name."""

    def __init__(self, noise: Any) -> None:
        self._noise = noise
        self.drawn: dict[str, Tensor] = {}
        """Draws by `uniform NAME` and `normal NAME`, on the host."""
        self.again: set[str] = set()
        """Draws that were asked for more than once."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._keep(f"uniform {name}", self._noise.uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._keep(f"normal {name}", self._noise.normal(name, shape))

    def _keep(self, name: str, values: Tensor) -> Tensor:
        if name in self.drawn:
            self.again.add(name)
        self.drawn[name] = values.detach().cpu().clone(memory_format=torch.contiguous_format)
        return values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)


class WatchedObjective:
    """An objective that keeps the batches of its held-out metrics, and what it draws for them."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective
        self.batches: list[Tensors] = []
        self.draws: list[Mapping[str, Tensor]] = []
        self.again: set[str] = set()

    def metrics(self, network: nn.Module, batch: Tensors, noise: Any) -> dict[str, Tensor]:
        watched = WatchedNoise(noise)
        values: dict[str, Tensor] = self._objective.metrics(network, batch, watched)
        self.batches.append(batch)
        self.draws.append(watched.drawn)
        self.again |= watched.again
        return values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)


class _Seen(Exception):
    """Raised in place of a network's forward pass."""


@contextmanager
def watched_calls(network: nn.Module, is_last: bool = False) -> Iterator[list[dict[str, Tensor]]]:
    """Yield a list that gets the tensors of each call of the network inside, by argument; with
    `is_last` the call ends by `_Seen` before the network computes anything."""
    seen: list[dict[str, Tensor]] = []
    signature = inspect.signature(network.forward)

    def see(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = signature.bind_partial(*inputs, **named).arguments
        seen.append(
            {name: each.detach().cpu() for name, each in given.items() if isinstance(each, Tensor)}
        )
        if is_last:
            raise _Seen

    hook = network.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def firsts(values: Tensor) -> Tensor:
    """Return the first number of each sample, (batch,) float64."""
    return values.reshape(len(values), -1)[:, 0].double()


def likeness(x: Tensor, data: Tensor) -> Tensor:
    """Return how like each sample is to its data, (batch,): the cosine, or the share of equal
    tokens."""
    if not x.is_floating_point():
        return (x == data).flatten(1).double().mean(1)
    return nn.functional.cosine_similarity(x.flatten(1).double(), data.flatten(1).double())


@contextmanager
def replaced_output(network: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the network's output, the first where it returns several, in each call inside."""

    def replace(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return change(output)
        return (change(output[0]), *output[1:])

    hook = network.register_forward_hook(replace)
    try:
        yield
    finally:
        hook.remove()


def compare_roles(module: nn.Module, roles: Mapping[str, str], findings: Findings) -> None:
    """Compare the role of each parameter with what its module's class says: of torch's norms,
    embeddings, Linears and convolutions. Weights that the network names have the named role."""
    named: dict[int, Role] = {}
    for network in module.modules():
        if isinstance(network, RoledNetwork):
            for role, modules in network.role_modules().items():
                named |= {id(each): role for part in modules for each in part.modules()}
    due: dict[int, Role] = {}
    for owner in module.modules():
        if isinstance(owner, NORMS):
            due |= {id(each): "norm" for each in owner.parameters(recurse=False)}
            continue
        for kind, role in WEIGHT_ROLES.items():
            if isinstance(owner, kind):
                due[id(owner.weight)] = named.get(id(owner), role)
                due[id(getattr(owner, "bias", None))] = "bias"
    wrong = [
        f"{name} has the role {roles[name]}, not {due[id(parameter)]}"
        for name, parameter in module.named_parameters()
        if name in roles and due.get(id(parameter), roles[name]) != roles[name]
    ]
    findings.same("parameters", "roles by their module's class", wrong)


def compare_parameters(
    reference: ReferenceTrainer, trained: Iterable[str], findings: Findings
) -> None:
    """Compare what trains, and roles. `trained`: names of the parameters that the engine trains."""
    compare_trained(reference, trained, findings)
    roles = {name: own.role for name, own in reference.settings.items()}
    compare_roles(reference.build().module, roles, findings)


def compare_trained(
    reference: ReferenceTrainer, trained: Iterable[str], findings: Findings
) -> None:
    """Compare the parameters that do not train with those that the spec freezes, and that the
    engine trains what the reference does. `trained`: names of the engine's."""
    engine = set(trained)
    untrained = sorted(reference.frozen | (set(reference.settings) - engine))
    tuning = reference.experiment.training
    patterns = tuning.freeze
    asked = set()
    for name in untrained:
        label = name.removeprefix("network.")
        is_base = tuning.lora is not None and patterns is None and name.startswith("network.")
        if is_base or any(matches(pattern, label) for pattern in patterns or ()):
            asked.add(name)
    num = len(reference.frozen) + len(reference.settings)
    if untrained:
        groups = Counter(name.rpartition(".")[0] for name in untrained)
        shown = ", ".join([*groups][:MOST_NAMES])
        more = f" and {len(groups) - MOST_NAMES} more" if len(groups) > MOST_NAMES else ""
        how = "as training.freeze and training.lora say"
        if len(asked) < len(untrained):
            how = f"{len(untrained) - len(asked)} of them without training.freeze"
        findings.untrained.append(
            f"{len(untrained)} of {num} parameters do not train, {how}: those of {shown}{more}."
        )
    remedy = "name it in training.freeze if that is meant"
    wrong = [f"{name} does not train; {remedy}" for name in untrained if name not in asked]
    wrong += [f"{name} trains" for name in sorted(engine - set(reference.settings))]
    findings.same("parameters", "those that do not train are frozen by the spec", wrong)


def compare_order(orders: Sequence[Order], findings: Findings) -> None:
    """Compare two epochs of each order: they differ, and neither holds a row twice."""
    for number, order in enumerate(orders):
        part = f" of part {number + 1}" if len(orders) > 1 else ""
        batches = min(order.batches_per_epoch, max(1, MOST_ORDERED // order.batch_size))
        first, second = (
            order.batches(epoch * order.batches_per_epoch, batches).reshape(-1) for epoch in (0, 1)
        )
        wrong = []
        for epoch, rows in enumerate((first, second), start=1):
            twice = len(rows) - len(np.unique(rows))
            if twice:
                wrong.append(f"epoch {epoch} holds {twice} of {len(rows)} samples twice")
        findings.same("order of epochs", f"each row once in an epoch{part}", wrong)
        if len(first) < LEAST_ROWS:
            findings.unchecked.append(
                f"whether epochs{part} differ in their order, as they have {len(first)} samples"
            )
            continue
        wrong = ["two epochs have one order"] * bool((first == second).all())
        findings.same("order of epochs", f"epochs differ{part}", wrong)


def data_parts(data: DataSplits) -> dict[str, tuple[DataSplits, str]]:
    """Return the parts of a mixture, or the data alone, by name, each with a clause for it."""
    if data.mixture is None:
        return {"": (data, "")}
    return {name: (part, f" of part {name}") for name, part in data.mixture.parts.items()}


def compare_split(data: DataSplits, findings: Findings) -> None:
    """Compare the rows of training with the held-out ones: none is both."""
    for part, clause in data_parts(data).values():
        if part.train.store.fingerprint != part.held_out.store.fingerprint:
            continue  # the held-out rows are of another store
        held_out = part.held_out.rows[np.arange(min(len(part.held_out), MOST_ROWS))]
        train = part.train.rows[np.arange(min(len(part.train), MOST_ROWS))]
        both = np.intersect1d(held_out, train)
        wrong = [f"row {row} is in both" for row in both[:1].tolist()]
        findings.same("held-out rows", f"none is trained on{clause}", wrong)


def held_out_rows(data: DataSplits, limit: int) -> Iterator[tuple[View, np.ndarray]]:
    """Yield the held-out rows that an evaluation of `limit` reads, in its order: each part's first
    ones, one size after the other. A view and the number of a row of its store, (1,)."""
    measured = {"": limit} if data.mixture is None else data.mixture.measured(limit)
    parts = data_parts(data)
    for name, num in measured.items():
        view = parts[name][0].held_out
        rows = view.rows[np.arange(min(num, len(view)))]
        for row in rows[np.argsort(view.store.bucket_of(rows), kind="stable")]:
            yield view, np.array([row])


def drawn_rows(draws: Iterable[Mapping[str, Tensor]]) -> dict[str, RowDraws]:
    """Return the draws of many batches by name."""
    found: dict[str, RowDraws] = {}
    for batch in draws:
        for name, values in batch.items():
            found.setdefault(name, RowDraws()).add(values)
    return found


@dataclass
class RowDraws:
    """Draws of one name, of many rows."""

    rows: list[str] = field(default_factory=list)
    """Digest of each row's numbers."""
    sample: list[np.ndarray] = field(default_factory=list)
    """Numbers whose law is looked at."""
    row_size: int = 0
    repeated: float = 0.0
    """Largest share of a row's numbers that an earlier one of the row equals."""

    def add(self, values: Tensor) -> None:
        """Take in the draws of some rows, (num, ...)."""
        flat = values.reshape(len(values), -1)
        self.rows += [tensor_digest(row) for row in flat]
        self.row_size = flat.shape[1]
        if len(self.rows) * min(NUM_DRAWN, self.row_size) <= MOST_DRAWN:
            self.sample.append(flat[:, :NUM_DRAWN].reshape(-1).numpy())
        self.repeated = max(self.repeated, 1 - len(flat[0].unique()) / self.row_size)

    @property
    def alike(self) -> int:
        """Rows whose numbers are those of another row before."""
        return len(self.rows) - len(set(self.rows))

    @property
    def most_alike(self) -> int:
        """Rows that chance makes alike."""
        return ALIKE if self.row_size < LEAST_SIZE else 0


class PropertyChecker:
    """Properties of a run's loss, evaluation and sampler, of networks without an engine."""

    def __init__(
        self,
        run: TrainingRun,
        reference: ReferenceTrainer,
        inputs: ModelInputs,
        pass_size: int,
        findings: Findings,
        weights: Whole,
    ) -> None:
        """`weights`: those that an evaluation takes."""
        self._run = run
        self._experiment = run.experiment
        self._reference = reference
        self._inputs = inputs
        self._pass_size = pass_size
        self._findings = findings
        self._weights = weights

    def compare(self) -> None:
        """Compare all of them."""
        self._compare_training_draws()
        self._compare_components()
        compare_split(self._run.data, self._findings)
        self._compare_held_out()
        self._compare_sampler()
        self._compare_guidance()

    def _model(self, dtype: torch.dtype) -> ReferenceModel:
        model = self._reference.model(self._weights, dtype)
        model.module.eval()
        return model

    def _rows(self) -> dict[str, Tensor]:
        """Return the first rows of the training data, of one shape, as a batch."""
        view = self._run.data.train.fullest()
        indices = np.arange(ROWS) % len(view)
        raw = {each.name: view.gather(each.name, indices) for each in self._inputs.fields}
        return self._inputs.prepare_batch(raw, view.columns, noise=self._noise(0))

    def _noise(self, step: int) -> ReferenceNoise:
        return ReferenceNoise(self._experiment.seed, "train", step, 0, ROWS, self._inputs.device)

    def _compare_training_draws(self) -> None:
        """Compare the numbers that the loss draws in many passes, and the network's inputs whose
        laws the objective's spec gives, with these laws; and that rows and steps have their own.
        """
        model = self._model(torch.float32)
        known = inspect.signature(model.network.forward).parameters
        laws = [
            law
            for law in self._experiment.objective.input_laws(self._experiment.model)
            if law.argument in known
        ]
        if not laws:
            self._findings.unchecked.append(
                "the law of training times, as the objective's spec gives none of an input of the "
                "network (input_laws)"
            )
        batch = self._rows()
        draws: dict[str, RowDraws] = {}
        calls: list[dict[str, Tensor]] = []
        for number in range(PASSES):
            noise = WatchedNoise(self._noise(number))
            with watched_calls(model.network, is_last=True) as seen, suppress(_Seen):
                model.objective.loss(model.network, batch, noise)
            calls += seen
            for name, values in noise.drawn.items():
                draws.setdefault(name, RowDraws()).add(values)
        self._compare_draws("training", draws)
        for law in laws:
            inputs = [firsts(call[law.argument]).numpy() for call in calls]
            what = f"{law.argument} of the network, {law.law}"
            self._compare_law("laws of draws", what, "", np.concatenate(inputs), law.cdf)
            shared = [
                f"all {len(each)} rows of a pass have {each[0]:.4g}"
                for each in inputs
                if len(each) > 2 and len(set(each.tolist())) == 1
            ]
            self._findings.same("laws of draws", f"{law.argument} of each row", shared)
        self._compare_ends(batch, calls)

    def _compare_ends(self, batch: Tensors, calls: Sequence[Mapping[str, Tensor]]) -> None:
        """Compare the network's inputs near the time at which sampling begins with those near its
        end: they are less like the data."""
        experiment = self._experiment
        times = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
        x = next(iter(calls[0].values()))
        data = next((each.cpu() for each in batch.values() if each.shape == x.shape), None)
        if times is None or times.argument not in calls[0] or data is None:
            return
        from_start = np.concatenate([firsts(call[times.argument]).numpy() for call in calls])
        from_start = np.abs(from_start - times.values[0])
        alike = np.concatenate(
            [likeness(next(iter(call.values())), data).numpy() for call in calls]
        )
        order = np.argsort(from_start)
        third = len(order) // 3
        near = alike[order[:third]]
        far = alike[order[-third:]]
        error = math.sqrt((near.var() + far.var()) / third)
        detail = f"likeness {near.mean():.3g} where sampling begins, {far.mean():.3g} at the end"
        self._findings.near(
            "laws of draws",
            "inputs are noise where sampling begins",
            max(0.0, float(near.mean() - far.mean())),
            DEVIATIONS * error + LINEAR,
            detail,
        )

    def _compare_law(
        self,
        phase: str,
        what: str,
        name: str,
        values: np.ndarray,
        cdf: Callable[[float], float],
    ) -> None:
        """Compare the distribution of values with a law; too few of them tell nothing."""
        bound = kolmogorov_bound(len(values))
        if bound < MOST_BOUND:
            away = kolmogorov_distance(values, cdf)
            note = f"mean {values.mean():.4g} of {len(values):,} values"
            self._findings.near(phase, what, away, bound, note, name)

    def _compare_draws(self, whose: str, draws: Mapping[str, RowDraws]) -> None:
        """Compare draws with the laws of their kinds; that rows have their own, within a row too;
        and draws of two names."""
        phase = "held-out draws" if whose == "held-out rows" else "laws of draws"
        firsts: dict[str, str] = {}
        same = []
        for name, each in draws.items():
            cdf = NORMAL.cdf if name.startswith("normal") else uniform_cdf
            numbers = np.concatenate(each.sample)
            self._compare_law(phase, f"numbers of {whose}", name, numbers, cdf)
            note = f"{each.alike} of {len(each.rows)} rows have the numbers of another"
            what = f"each row's own in {whose}"
            self._findings.near(phase, what, each.alike, each.most_alike, note, name)
            if each.row_size >= ROWS:
                what = f"numbers of a row alike in {whose}"
                self._findings.near(phase, what, each.repeated, REPEATED, "", name)
            other = firsts.setdefault(each.rows[0], name)
            if other != name and each.row_size >= LEAST_SIZE:
                same.append(f"{other} and {name} have the same numbers")
        self._findings.same(phase, f"each name's own in {whose}", same)

    def _compare_components(self) -> None:
        """Compare each loss component by itself: it falls along its own negative gradient as that
        says, lies above its least value, and is least at the output that predicts its targets."""
        model = self._model(torch.float64)
        batch = {
            name: each.double() if each.is_floating_point() else each
            for name, each in self._rows().items()
        }
        noise = replaced(self._noise(0), dtype=torch.float64)
        components = dict(model.objective.loss(model.network, batch, noise))
        weights = self._reference.spec["objective"]["weights"]
        detached: Sequence[str] = ()
        if isinstance(model.objective, DetachingObjective):
            detached = list(model.objective.detaching)
        trained = [name for name in components if weights.get(name)]
        for name in trained:
            if name not in detached:
                self._compare_slope(model, batch, noise, name, float(weights[name]))
        least = self._experiment.objective.least_losses(self._experiment.model)
        for name in trained:
            if name in least:
                below = max(0.0, least[name] - float(components[name].detach()))
                self._findings.near(
                    "loss components", f"{name} is at least {least[name]:g}", below, 1e-9
                )
            else:
                self._findings.unchecked.append(
                    f"the sign of {name}, as the objective's spec gives no least value "
                    "(least_losses)"
                )
        names = [name for name in trained if name in least and name not in detached]
        if isinstance(model.objective, KnownTargetObjective):
            self._compare_targets(model, batch, noise, names)
        else:
            self._findings.unchecked.append(
                "that the loss is least at its targets, as the objective does not give them "
                "(best_output)"
            )

    def _compare_slope(
        self, model: ReferenceModel, batch: Tensors, noise: Any, name: str, weight: float
    ) -> None:
        """Compare the fall of a weighted component along its negative gradient with the gradient's
        norm."""
        parameters = [each for each in model.module.parameters() if each.requires_grad]

        def value() -> Tensor:
            found: Tensor = weight * model.objective.loss(model.network, batch, noise)[name]
            return found

        gradients = torch.autograd.grad(value(), parameters, materialize_grads=True)
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
        what = f"{name} falls along its negative gradient"
        if not norm:
            self._findings.near("loss components", what, math.inf, SLOPE, "its gradient is 0")
            return
        kept = [each.detach().clone() for each in parameters]
        ends = []
        with torch.no_grad():
            for width in (WIDTH, -WIDTH):
                for parameter, gradient, old in zip(parameters, gradients, kept, strict=True):
                    parameter.copy_(old - width * gradient / norm)
                ends.append(float(value()))
            for parameter, old in zip(parameters, kept, strict=True):
                parameter.copy_(old)
        fall = (ends[1] - ends[0]) / (2 * WIDTH)
        detail = f"it falls by {fall:.6g} a unit of length, the gradient's norm is {norm:.6g}"
        rounding = 100 * max(map(abs, ends)) * 2.0**-53 / WIDTH / norm
        self._findings.near("loss components", what, abs(fall / norm - 1), SLOPE + rounding, detail)

    def _compare_targets(
        self, model: ReferenceModel, batch: Tensors, noise: Any, names: Sequence[str]
    ) -> None:
        """Compare components at the output that predicts their targets with those at outputs away
        from it."""
        best = model.objective.best_output(batch, noise)
        generator = torch.Generator().manual_seed(
            derived_seed(self._experiment.seed, "prove", "targets")
        )
        drawn = torch.randn(best.shape, generator=generator, dtype=torch.float64).to(best)
        drawn = drawn * best.double().square().mean().sqrt()
        values: dict[str, list[float]] = {name: [] for name in names}
        away = [width * drawn for width in (1.0, -1.0, NEAR, -NEAR)]
        for output in (best, -best, *(best + each for each in away)):
            with torch.no_grad(), replaced_output(model.network, output.expand_as):
                found = model.objective.loss(model.network, batch, noise)
            for name in names:
                values[name].append(float(found[name]))
        for name, (least, *others) in values.items():
            if all(each == least for each in others):
                continue  # it is not of the output, such as an alignment of features
            wrong = [
                f"{least:.6g} at its targets, {each:.6g} away from them"
                for each in others
                if not least < each
            ]
            self._findings.same("loss components", f"{name} is least at its targets", wrong)

    def _compare_held_out(self) -> None:
        """Compare the rows that an evaluation reads with the held-out ones, and the numbers that it
        draws for each in evaluations of two batch sizes."""
        run = self._run
        alone = Rank(0, 1, 0, self._inputs.device)
        limit = run.experiment.evaluation.limit
        if not len(run.data.held_out):
            self._findings.unchecked.append("held-out metrics, as no rows are held out")
            return
        size = min(self._pass_size, limit)
        model = self._model(torch.float32)
        watched = []
        for batch_size in (size, max(1, size // 2)):
            objective = WatchedObjective(model.objective)
            with torch.no_grad():
                metrics_by_part(
                    model.network,
                    objective,
                    run.experiment,
                    run.data,
                    self._inputs,
                    batch_size,
                    limit,
                    alone,
                    ControlChannel(alone),
                )
            watched.append(objective)
        self._compare_held_out_rows(watched[0], limit)
        parts = [drawn_rows(each.draws) for each in watched]
        wrong = [
            f"{name} depends on the batch, or on the evaluation"
            for name, each in parts[0].items()
            if name not in parts[1] or each.rows != parts[1][name].rows
        ]
        self._findings.same("held-out draws", "alike in two evaluations", wrong)
        if run.data.mixture is None and len(run.data.held_out.store.parts) == 1:
            self._compare_draws("held-out rows", parts[0])
        if watched[0].again:
            self._findings.untold.append(
                f"Held-out metrics draw {', '.join(sorted(watched[0].again))} several times for a "
                "row, and these have the same numbers."
            )

    def _compare_held_out_rows(self, watched: WatchedObjective, limit: int) -> None:
        due = list(held_out_rows(self._run.data, limit))
        wrong = []
        place = 0
        for batch in watched.batches:
            num = len(next(iter(batch.values())))
            for number in range(num):
                if place + number >= len(due):
                    wrong.append(f"evaluation reads more than {len(due)} rows")
                    break
                view, row = due[place + number]
                for each in self._inputs.fields:
                    if each.name not in batch:
                        continue  # an encoder's features take its place
                    values = view.store.gather(each.name, row)
                    if view.changes:
                        change_rows(view.changes, {each.name: values}, row)
                    own = batch[each.name][number : number + 1]
                    if not is_stored(own, values, each, view.columns[each.name]):
                        wrong.append(f"{each.name} of row {place + number + 1} is another's")
            place += num
        if place < len(due):
            wrong.append(f"evaluation reads {place} of {len(due)} rows")
        self._findings.same("held-out rows", "those that evaluation reads", wrong)

    def _compare_sampler(self) -> None:
        """Compare the times at which the network is evaluated for one sample with those of the
        spec, and what a change of its outputs makes of the sample."""
        experiment = self._experiment
        due = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
        model = self._model(torch.float32)
        known = inspect.signature(model.network.forward).parameters
        if due is None or due.argument not in known:
            self._findings.unchecked.append(
                "the sampler's evaluations, as its spec does not give their times "
                "(evaluation_times)"
            )
            return
        with torch.no_grad(), watched_calls(model.network) as seen:
            self._draw(model)
        times = [float(firsts(each[due.argument])[0]) for each in seen]
        if len(times) == 2 * len(due.values):
            times = times[::2]  # a guided sampler may call the network once for each condition
        detail = f"{len(times)} evaluations in place of {len(due.values)}"
        away = math.inf
        if len(times) == len(due.values):
            differences = [abs(one - two) for one, two in zip(times, due.values, strict=True)]
            away = max(differences)
            first = differences.index(away)
            detail = f"evaluation {first + 1} is at {times[first]:.6g}, not {due.values[first]:.6g}"
        bound = due.rounding + TIME_ROUNDING * max(1.0, *map(abs, due.values))
        if away <= bound:
            detail = f"{len(times)} evaluations, the last at {times[-1]:.6g}"
        self._findings.near("sampler", "times of the network's evaluations", away, bound, detail)
        if due.shift is None:
            self._findings.unchecked.append(
                "the size of the sampler's steps, as its spec gives no `shift`"
            )
            return
        with torch.no_grad():
            with replaced_output(model.network, torch.zeros_like):
                still = self._draw(model)
            with replaced_output(model.network, torch.ones_like):
                moved = self._draw(model)
        away = float((moved - still - due.shift).abs().max())
        detail = f"mean {float((moved - still).mean()):.6g} in place of {due.shift:g}"
        self._findings.near(
            "sampler", "sum of its steps, for outputs of 1", away, TIME_ROUNDING * 10, detail
        )

    def _draw(self, model: ReferenceModel) -> Tensor:
        sampler, conditions, num = self._sampler(self._experiment.sampling, 1)
        values: Tensor = sampler.sample(model.network, conditions, num, self._generator()).values
        return values.detach().cpu()

    def _generator(self) -> torch.Generator:
        return torch.Generator(self._inputs.device).manual_seed(self._experiment.seed)

    def _sampler(self, spec: SamplingSpec, num: int) -> tuple[Any, dict[str, Tensor], int]:
        """Return the family's sampler under a spec, and the conditions of `num` samples."""
        experiment = self._experiment
        sampler: Any = experiment.family.build_sampler(
            spec, experiment.model, experiment.objective, self._run.data.text
        )
        found = sample_conditions(sampler, num, rows_for_samples(self._run.data), self._inputs)
        tensors = {name: each.to(self._inputs.device) for name, each in found.tensors.items()}
        return sampler, tensors, found.num

    def _compare_guidance(self) -> None:
        """Compare guided predictions of four scales: linear in the scale, at 0 the unconditional
        one, at 1 the conditional one."""
        experiment = self._experiment
        specs = [experiment.sampling.guided_by(scale, experiment.model) for scale in SCALES]
        times = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
        if specs[0] is None or times is None:
            self._findings.unchecked.append("guidance, as samples of this model are not guided")
            return
        network = self._model(torch.float64).network
        at = times.values[len(times.values) // 2]
        found = []
        for spec, scale in zip(specs, SCALES, strict=True):
            assert spec is not None
            sampler, conditions, num = self._sampler(spec, 2)
            if not isinstance(sampler, GuidedSampler):
                self._findings.unchecked.append("guidance, as the sampler has no `guided`")
                return
            with watched_calls(network, is_last=True) as seen, suppress(_Seen):
                sampler.sample(network, conditions, num, self._generator())
            x = next(iter(seen[0].values()))[:num].to(self._inputs.device)
            with torch.no_grad():
                found.append(sampler.guided(network, conditions)(x, at))
                if scale == 1:
                    without = sampler.unconditioned(conditions)
                    plain = sampler.guided(network, without)(x, at)
        size = max(float(each.norm()) for each in found)
        bends = [
            float((found[place] - 2 * found[place + 1] + found[place + 2]).norm()) / size
            for place in (0, 1)
        ]
        self._findings.near("guidance", "linear in its scale", max(bends), LINEAR)
        is_guided = found[3] != found[2]  # a learned variance is not
        away = float((found[0] - plain)[is_guided].norm()) / size
        self._findings.near("guidance", "scale 0 is without conditions", away, LINEAR)
        apart = float((found[1] - found[0]).norm()) / size
        wrong = ["predictions with and without conditions are alike"] * (not apart > LINEAR)
        self._findings.same("guidance", "conditions change a prediction", wrong)
