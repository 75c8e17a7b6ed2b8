"""The sampler: samples have the law, keep their prompts, and are drawn independently."""

import pytest
import torch

from ditlab_models.contract import Prompt, SampleRequest
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from ditlab_models.processes.specs import TokenNoiseSchedule
from support.damage import refused
from support.models.draws import seeded
from support.models.letters import letters
from support.models.small_networks import small_dlm
from support.models.true_scores import PAIR, TrueScores, distance

# e^-30 of a start is not uniform: nothing
WIDE = TokenNoiseSchedule(sigma_min=1e-3, sigma_max=30.0)


def make_sampler(model=None, noise=WIDE, score="log", text=None, **sampling):
    spec = DLMSamplingSpec(**sampling)
    return FAMILY.build_sampler(
        spec,
        model or DLMSpec(length=2, vocabulary=3),
        DLMObjectiveSpec(noise=noise, score=score),
        text,
    )


def frequencies(values, vocabulary):
    length = values.shape[1]
    index = sum(values[:, place] * vocabulary ** (length - 1 - place) for place in range(length))
    return (torch.bincount(index, minlength=vocabulary**length).double() / len(values)).view(
        (vocabulary,) * length
    )


@pytest.mark.parametrize("solver", ["analytic", "euler"])
def test_samples_have_the_law(solver):
    """Counts 3,000 pairs, 50 a sample: the mean distance of as many true draws is 0.02."""
    sampler = make_sampler(DLMSpec(length=100, vocabulary=3), solver=solver, steps=100)
    drawn = sampler.sample(TrueScores(PAIR), {}, 60, seeded())
    assert (
        drawn.values.dtype == torch.int64
        and drawn.values.shape == (60, 100)
        and drawn.trajectory is None
    )
    assert distance(frequencies(drawn.values.view(-1, 2), 3), PAIR) < 0.05


def test_an_euler_step_that_is_too_large_replaces_every_token():
    """30 ln 30 times its rate; one whole step leaves a token a probability of 0 already."""
    sampler = make_sampler(
        solver="euler",
        steps=1,
        noise=TokenNoiseSchedule(sigma_min=1.0, sigma_max=30.0),
        denoise=False,
    )
    network = TrueScores(torch.ones(3, 3, dtype=torch.float64))
    frames = sampler.sample(network, {}, 500, seeded(), trajectory=True).trajectory
    assert (frames[1] != frames[0]).all()


def test_the_sampler_reads_the_output_as_the_objective_does():
    drawn = [
        make_sampler(score=score, steps=3).sample(TrueScores(PAIR), {}, 200, seeded())
        for score in ("log", "softmax")
    ]
    assert not torch.equal(drawn[0].values, drawn[1].values)


@pytest.mark.parametrize("solver", ["analytic", "euler"])
def test_a_lower_temperature_gives_less_varied_text_and_1_is_the_law_as_it_is(solver):
    def drawn(**changes):
        sampler = make_sampler(
            DLMSpec(length=100, vocabulary=3), solver=solver, steps=20, **changes
        )
        return sampler.sample(TrueScores(PAIR), {}, 20, seeded()).values

    def entropy(values):
        shares = frequencies(values.view(-1, 2), 3).flatten()
        return float(-(shares * shares.clamp(min=1e-9).log()).sum())

    assert torch.equal(drawn(), drawn(temperature=1.0))
    cold, own, hot = (entropy(drawn(temperature=temperature)) for temperature in (0.3, 1.0, 3.0))
    assert cold < own - 0.05 and own < hot - 0.05


@pytest.mark.parametrize("solver", ["euler", "analytic", "categorical"])
def test_clamped_tokens_are_in_every_evaluation_and_in_the_samples(solver):
    network, seen = small_dlm(), []
    network.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    sampler = make_sampler(network.spec, text=letters(), solver=solver, steps=4)
    request = SampleRequest(prompts=[Prompt("abc"), Prompt("de", 6), Prompt("a", -1)])
    conditions = sampler.conditions(3, request)
    assert conditions["given"].dtype == torch.bool and conditions["tokens"].dtype == torch.int64
    drawn = sampler.sample(network, conditions, 3, seeded(), trajectory=True)
    assert len(seen) == (4 if solver == "categorical" else 5)
    for tokens in (*seen, *drawn.trajectory, drawn.values):
        assert tokens[:, :3].tolist() == [[0, 1, 2]] * 3
        assert tokens[:, 6:8].tolist() == [[3, 4]] * 3 and tokens[:, 11].tolist() == [0] * 3
    assert torch.equal(drawn.conditions["given"], conditions["given"])
    assert drawn.values[:, 3:6].unique().numel() > 1


def test_fewer_tokens_than_the_model_has():
    network = small_dlm()
    sampler = make_sampler(network.spec, length=7, steps=2)
    assert sampler.sample(network, {}, 2, seeded()).values.shape == (2, 7)


def test_frames_from_noise_to_the_answer():
    network = small_dlm()
    sampler = make_sampler(network.spec, solver="analytic", steps=20)
    drawn = sampler.sample(network, {}, 3, seeded(), trajectory=True)
    assert drawn.trajectory.shape == (22, 3, 12) and drawn.trajectory.dtype == torch.int64
    assert torch.equal(drawn.trajectory[-1], drawn.values)
    kept, noise = drawn.fields["frames"], drawn.fields["noise"]
    assert torch.equal(kept, drawn.trajectory[[0, 3, 6, 9, 12, 15, 18, 21], 0])
    assert noise[0] == pytest.approx(30.0) and noise[-1] == 0 and (noise.diff() < 0).all()
    assert noise[1] == pytest.approx(float(WIDE.sigma(torch.tensor(0.85))), rel=1e-3)
    plain = sampler.sample(network, {}, 3, seeded())
    assert plain.trajectory is None and torch.equal(plain.fields["frames"], kept)
    short = make_sampler(network.spec, steps=2, denoise=False).sample(network, {}, 1, seeded())
    assert len(short.fields["frames"]) == 3


def test_noise_is_uniform():
    """Counts 4,000 pairs of tokens out of 3, 50 a sample; a standard error of 0.005 a token."""
    sampler = make_sampler(DLMSpec(length=100, vocabulary=3), steps=1)
    start = sampler.sample(TrueScores(PAIR), {}, 80, seeded(), trajectory=True).trajectory[0]
    assert distance(frequencies(start.view(-1, 2), 3), torch.full((3, 3), 1 / 9).double()) < 0.03


@pytest.mark.parametrize("block", [None, {"cache": True}])
def test_prompts_are_put_over_given_tokens(block):
    network = small_dlm(**({"block_size": 4} if block else {}))
    sampler = make_sampler(network.spec, steps=3, block=block)
    prompts = {"tokens": torch.full((3, 12), 2), "given": (torch.arange(12) < 2).expand(3, 12)}
    drawn = sampler.sample(
        network, prompts, 3, seeded(), trajectory=True, noise=torch.full((3, 12), 7)
    )
    assert drawn.trajectory[0].tolist() == [[2, 2] + [7] * 10] * 3


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            torch.zeros(2, 12),
            "from 0 to 10 as int64 .model.vocabulary=11.*holds float32 from 0 to 0",
        ),
        (torch.full((2, 12), 11), "holds int64 from 11 to 11"),
        (torch.full((2, 12), -1), "holds int64 from -1 to -1"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(noise, message):
    network = small_dlm()
    with refused(message, ValueError):
        make_sampler(network.spec, steps=1).sample(network, {}, 2, seeded(), noise=noise)


def test_noise_levels_of_a_half_precision_network_are_in_float32():
    network = small_dlm().bfloat16()
    dtypes = []
    network.register_forward_pre_hook(lambda _module, inputs: dtypes.append(inputs[1].dtype))
    make_sampler(network.spec, steps=2).sample(network, {}, 2, seeded())
    assert set(dtypes) == {torch.float32}
