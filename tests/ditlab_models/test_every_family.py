"""Promises of every family's network, loss and sampler, on small networks of each kind."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ditlab_models.contract import RealRows, SampleRequest
from ditlab_models.families import families
from ditlab_models.processes.draws import batch_means
from support.damage import refused
from support.marks import slow
from support.models.draws import KeyedNoise, RowKeyedNoise, check_halves, seeded, train
from support.models.figure_networks import SETTINGS, figure_network
from support.models.plain_dlm import recompute


@pytest.fixture(params=SETTINGS)
def made(request):
    return figure_network(request.param)


def cast(made, dtype):
    made.network.to(dtype)
    if made.objective.modules is not None:
        made.objective.modules.to(dtype)


def loss_and_gradients(made):
    """The loss's components, and the gradient of each parameter under the weighted sum of them."""
    components = made.objective.loss(made.network, made.batch, RowKeyedNoise(0))
    total = sum(made.objective.weights[name] * value for name, value in components.items())
    trained = dict(made.network.named_parameters())
    if made.objective.modules is not None:
        trained |= dict(made.objective.modules.named_parameters())
    return components, dict(
        zip(trained, torch.autograd.grad(total, list(trained.values())), strict=True)
    )


def objective_of(name, made, **changes):
    """The objective of these settings with changes."""
    family = families()[made.spec.family]
    mapping = {**SETTINGS[name][2], **changes}
    return family.build_objective(family.objective_of(mapping).model_validate(mapping), made.spec)


def inputs(made, dtype=torch.float32):
    examples = families()[made.spec.family].example_inputs(made.spec, 3, device="cpu")
    return [
        each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
        for each in examples
    ]


# Network


def test_half_precision_is_close_to_single(made):
    """Outputs under autocast, and those of bfloat16 weights, which are in bfloat16, are 0.3 to 3%
    from single ones.
    """
    single = made.network(*inputs(made))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = made.network(*inputs(made))
    half = made.network.bfloat16()(*inputs(made, torch.bfloat16))
    assert half.dtype == torch.bfloat16
    for each in (mixed, half):
        assert (each.float() - single).norm() < 0.08 * single.norm()


@pytest.mark.parametrize(
    "name",
    ["dit-class", *slow("unet", "region", "dlm", "dlm-block", "pixelhdm", "pixelhdm-frozen")],
)
def test_forward_pass_is_one_graph(name):
    made = figure_network(name)
    compiled = torch.compile(made.network, fullgraph=True, backend="eager")
    assert_close(compiled(*inputs(made)), made.network(*inputs(made)))


# Loss and held-out metrics


def test_gradients_reach_every_parameter_and_are_those_of_recomputed_activations(made):
    _, before = loss_and_gradients(made)
    assert not [name for name, gradient in before.items() if not gradient.any()]
    assert len([*made.network.checkpointed_modules()]) > 1
    recompute(made.network)
    assert_close(loss_and_gradients(made)[1], before)


def test_a_micro_batch_is_its_two_halves_and_draws_nothing_global(made):
    """Given its slice of the draws, a slice of a micro-batch gives its share of loss and
    metrics.
    """
    cast(made, torch.float64)
    state = torch.get_rng_state()

    def measure(rows, source):
        part = {name: values[rows] for name, values in made.batch.items()}
        means = batch_means(made.objective.metrics(made.network, part, source))
        trained = made.objective.loss(made.network, part, source)
        return {**means, **{f"trained {name}": each.detach() for name, each in trained.items()}}

    check_halves(measure, len(next(iter(made.batch.values()))), rtol=1e-5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("dit", ["noise", "time"]),
        ("dit-class", ["label_dropout", "noise", "time"]),
        ("dit-gaussian", ["label_dropout", "noise", "time"]),
        ("region", ["mask", "time"]),
        ("region-ddpm", ["mask", "noise", "time"]),
        ("dlm", ["jump", "move", "time"]),
        ("pixelhdm", ["condition_dropout", "noise", "time"]),
    ],
)
def test_the_losses_draws_have_names(name, draws):
    made, noise = figure_network(name), KeyedNoise()
    made.objective.loss(made.network, made.batch, noise)
    assert sorted(noise.names) == draws


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_precision_train_with_losses_of_full_precision(made, dtype):
    expected, _ = loss_and_gradients(made)
    cast(made, dtype)
    components, gradients = loss_and_gradients(made)
    for name, value in components.items():
        assert value.dtype == torch.promote_types(dtype, torch.float32)
        assert value.item() == pytest.approx(expected[name].item(), rel=0.05)
    assert all(each.isfinite().all() for each in gradients.values())


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("dit", {}, {"velocity"}),
        ("unet", {"direction": 0.5}, {"velocity", "direction"}),
        ("dit", {"velocity": 0.0, "direction": 0.5}, {"direction"}),
        ("region", {}, {"masked"}),
        ("region", {"masked": 0.0, "accessibility": 2.0}, {"accessibility"}),
        ("pixelhdm-frozen", {}, {"velocity", "frequency", "alignment"}),
        ("pixelhdm-frozen", {"alignment": 0.0}, {"velocity", "frequency"}),
        ("pixelhdm-frozen", {"velocity": 0.0, "alignment": 0.0}, {"frequency"}),
    ],
)
def test_only_weighted_components_are_computed(name, weights, expected):
    made = figure_network(name)
    built = objective_of(name, made, weights=weights)
    assert set(built.loss(made.network, made.batch, KeyedNoise())) == expected
    assert built.weights.items() >= weights.items()
    assert (built.modules is not None) == ("alignment" in expected)


@pytest.mark.parametrize(
    ("name", "components", "others"),
    [
        ("dit", ["velocity", "direction"], []),
        ("dit-gaussian", ["noise", "bound"], []),
        ("region-ddpm", ["masked", "accessibility"], ["spread", "mse", "r2", "pearson"]),
        (
            "dlm",
            ["score_entropy", "unweighted"],
            ["bound", "perplexity", "bits_per_token", "bits_per_byte"],
        ),
        ("pixelhdm", ["velocity", "frequency"], []),
        ("pixelhdm-frozen", ["velocity", "frequency", "alignment"], []),
    ],
)
def test_held_out_metrics_are_components_and_the_first_by_quarter(name, components, others):
    made = figure_network(name)
    metrics = made.objective.metrics(made.network, made.batch, KeyedNoise())
    assert not any(value.requires_grad for value in metrics.values())
    means = batch_means(metrics)
    quarters = [f"{components[0]}_t{quarter}" for quarter in range(4)]
    assert list(made.objective.metric_names()) == [*components, *quarters, *others]
    assert list(made.objective.summary(means)) == [*components, *quarters, *others]
    mean = sum(means[quarter] for quarter in quarters) / 4
    assert means[components[0]] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "dit",
            {
                "time": {"kind": "logit_normal", "mean": 2.0},
                "weights": {"velocity": 1e-3, "direction": 1.0},
            },
        ),
        (
            "region-ddpm",
            {
                "mask_ratio": 0.9,
                "reduction": "zeroed_mean",
                "weights": {"accessibility": 3.0},
            },
        ),
        (
            "dlm",
            {
                "time": {"kind": "logit_normal", "std": 0.3},
                "time_min": 0.5,
                "weights": {"score_entropy": 3.0},
            },
        ),
        (
            "pixelhdm",
            {
                "time": {"kind": "uniform"},
                "weights": {"velocity": 3.0, "frequency": 0.0, "alignment": 0.0},
            },
        ),
    ],
)
def test_held_out_metrics_do_not_depend_on_training_knobs(name, changes):
    made = figure_network(name)
    first, second = (
        batch_means(built.metrics(made.network, made.batch, KeyedNoise()))
        for built in (made.objective, objective_of(name, made, **changes))
    )
    assert first == second


@pytest.mark.parametrize("name", ["dit", "unet", "dit-gaussian", "pixelhdm-frozen"])
def test_a_few_steps_learn(name):
    """One image: the velocity at its noised ones is all but certain, and every component falls."""
    made = figure_network(name)
    batch = {key: values[:1].expand(8, *values.shape[1:]) for key, values in made.batch.items()}

    def measure():
        return batch_means(made.objective.metrics(made.network, batch, KeyedNoise(-1)))

    before = measure()
    train(made.network, made.objective, batch, KeyedNoise, steps=30, rate=3e-3)
    after = measure()
    for component, weight in made.objective.weights.items():
        assert weight == 0 or after[component] < 0.8 * before[component], component


# Samples


SAMPLERS = [
    ("dit", {}),
    ("dit-class", {"guidance": 2.5}),
    ("unet", {"solver": "rk4"}),
    ("dit-gaussian", {}),
    ("unet-gaussian", {"solver": "ddim"}),
    ("region-ddpm", {"solver": "predict"}),
    ("region-ddpm", {"solver": "ddpm"}),
    ("region-ddpm", {"eta": 0.5}),
    ("dlm", {}),
    ("dlm", {"solver": "euler"}),
    ("dlm", {"solver": "categorical"}),
    ("dlm-block", {}),
    ("pixelhdm", {}),
    ("pixelhdm-frozen", {}),
]


@pytest.fixture(params=SAMPLERS)
def sampled(request):
    """A network whose sampler has other settings."""
    name, changes = request.param
    made = figure_network(name)
    family = families()[made.spec.family]
    objective = family.objective_of(SETTINGS[name][2]).model_validate(SETTINGS[name][2])
    sampling = family.sampling_of(type(objective))(**{**SETTINGS[name][3], **changes})
    return dataclasses.replace(
        made, sampler=family.build_sampler(sampling, made.spec, objective, None)
    )


def draw(made, num=4, seed=0, **options):
    """Draw samples, of the batch's conditions where they have some."""
    rows = RealRows(made.batch, {}, {}, RowKeyedNoise(0))
    conditions = made.sampler.conditions(num, SampleRequest(rows=rows))
    return made.sampler.sample(made.network, conditions, num, seeded(seed), **options)


def test_samples_do_not_depend_on_how_many_are_drawn(sampled):
    sampled.network.double()
    two = draw(sampled, 2).values
    assert_close(draw(sampled).values[:2], two)
    assert not torch.equal(draw(sampled, 2, seed=1).values, two)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_given_noise_is_where_samples_begin(sampled, dtype):
    """All other draws stay those of the generator. Samples of numbers are in float32 or better."""
    sampled.network.to(dtype)
    drawn = draw(sampled, trajectory=True)
    noise = drawn.trajectory[0]
    assert torch.equal(drawn.trajectory[-1], drawn.values)
    assert drawn.values.dtype in (torch.int64, torch.promote_types(dtype, torch.float32))
    again = draw(sampled, noise=noise)
    assert torch.equal(again.values, drawn.values) and again.trajectory is None
    assert not torch.equal(draw(sampled, noise=noise.flip(0)).values, drawn.values)
    with refused("samples begin with", ValueError):
        draw(sampled, noise=noise[:, :-1])


@pytest.mark.parametrize("name", ["dit", "region", "dlm", "pixelhdm"])
def test_a_label_is_refused_where_there_are_no_classes(name):
    with refused(r"label=3 was given to .*leave the label out", ValueError):
        figure_network(name).sampler.conditions(2, SampleRequest(label=3))
