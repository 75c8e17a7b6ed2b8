"""Sampling block by block: a cache changes nothing, blocks depend on clean ones, and their laws
compose.
"""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.contract import Prompt, SampleRequest
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import BlockSampling, DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from ditlab_models.processes.specs import TokenNoiseSchedule
from support.models.draws import seeded
from support.models.letters import letters
from support.models.small_networks import small_dlm
from support.models.true_scores import BlockScores, every_sequence

SOLVERS = ("analytic", "euler", "categorical")
NOISE = TokenNoiseSchedule(sigma_min=1e-3, sigma_max=5.0)
PROMPTS = {
    "none": [],
    # over the ends of blocks 0 and 1, and of blocks 2 and 3
    "scattered": [Prompt("ab", 3), Prompt("cde", -4)],
    "whole blocks": [Prompt("abcdefgh"), Prompt("ij", 13)],
    "a later block": [Prompt("abcd", 8)],
}


def make_sampler(model, cached=True, noise=NOISE, **sampling):
    spec = DLMSamplingSpec(**{"steps": 4, **sampling}, block=BlockSampling(cache=cached))
    return FAMILY.build_sampler(spec, model, DLMObjectiveSpec(noise=noise), letters())


@pytest.fixture
def network():
    """Four blocks of 4, every parameter off 0."""
    return small_dlm(length=16, block_size=4)


def record_steps(network, run):
    """Run the sampler; return samples and the network's inputs and outputs: (tokens, log scores) of
    every step.
    """
    passes = []
    hook = network.output.register_forward_hook(
        lambda _m, inputs, output: passes.append((inputs[2], output))
    )
    samples = run()
    hook.remove()
    return samples, passes


@pytest.mark.parametrize(("seed", "prompts"), enumerate(PROMPTS.values()))
def test_cached_and_uncached_give_the_same_tokens_from_the_same_log_scores(network, prompts, seed):
    cached, uncached = (
        make_sampler(network.spec, choice, solver=SOLVERS[seed % 3]) for choice in (True, False)
    )
    conditions = cached.conditions(3, SampleRequest(prompts=prompts))
    with_cache, its = record_steps(
        network, lambda: cached.sample(network, conditions, 3, seeded(seed))
    )
    without, theirs = record_steps(
        network, lambda: uncached.sample(network, conditions, 3, seeded(seed))
    )
    assert torch.equal(with_cache.values, without.values)
    assert len(its) == len(theirs) > 0
    for (tokens, scores), (other_tokens, other_scores) in zip(its, theirs, strict=True):
        assert torch.equal(tokens, other_tokens) and scores.shape == (3, 4, 11)
        assert_close(scores, other_scores, rtol=0, atol=1e-10)
    assert without.values[:, 8:].unique().numel() > 2


CHAIN = torch.tensor([0.5, 0.3, 0.2]).double()[:, None] * torch.tensor(
    [[0.9, 0.1, 0], [0, 0.9, 0.1], [0.1, 0, 0.9]]
)


@pytest.mark.parametrize("cached", [True, False])
def test_blocks_recover_a_law_block_by_block(cached):
    """Blocks of one token, for which analytic steps are exact. Counts 3,000 samples: true draws are
    0.013 away.
    """
    network = BlockScores(CHAIN)
    noise = TokenNoiseSchedule(sigma_min=1e-3, sigma_max=15.0)
    model = DLMSpec(length=2, vocabulary=3, block_size=1)
    sampler = make_sampler(model, cached, noise=noise, solver="analytic", steps=8)
    drawn = sampler.sample(network, {}, 3000, seeded()).values
    counts = [(drawn == sequence).all(dim=1).double().mean() for sequence in every_sequence(3, 2)]
    assert float((torch.stack(counts) - CHAIN.flatten()).abs().sum() / 2) < 0.04
    sigmas = {sigma for call, _, sigma in network.calls if call == "commit"}
    assert [*sigmas] == [pytest.approx(1e-3)]


def calls_of(*prompts):
    """The network's calls for four blocks of two tokens: (call, tokens before), in turn."""
    network = BlockScores(torch.ones(*[2] * 8).double())
    sampler = make_sampler(DLMSpec(length=8, vocabulary=2, block_size=2), steps=2)
    conditions = sampler.conditions(2, SampleRequest(prompts=prompts))
    drawn = sampler.sample(network, conditions, 2, seeded(), trajectory=True)
    return [(call, before) for call, before, _ in network.calls], drawn


def test_each_block_has_its_steps_and_all_but_the_last_are_committed():
    calls, drawn = calls_of()
    one = [("evaluate", 0)] * 3 + [("commit", 0)]
    assert calls == [(call, 2 * number) for number in range(4) for call, _ in one][:-1]
    assert drawn.trajectory.shape == (1 + 4 * 3, 2, 8)


def test_a_wholly_clamped_block_costs_no_step():
    calls, drawn = calls_of(Prompt("abb", 2))  # block 1 and half of block 2
    assert calls[:4] == [("evaluate", 0)] * 3 + [("commit", 0)]
    assert (
        calls[4:]
        == [("commit", 2)] + [("evaluate", 4)] * 3 + [("commit", 4)] + [("evaluate", 6)] * 3
    )
    assert (drawn.trajectory[:, :, 2:5] == torch.tensor([0, 1, 1])).all()
    calls, drawn = calls_of(Prompt("abababab"))
    assert {call for call, _ in calls} == {"commit"}
    assert drawn.values.tolist() == [[0, 1] * 4] * 2 and len(drawn.trajectory) == 1


def test_frames_finish_a_block_before_the_next_begins(network):
    drawn = make_sampler(network.spec, steps=3).sample(network, {}, 2, seeded(), trajectory=True)
    assert drawn.trajectory.shape == (1 + 4 * 4, 2, 16) and torch.equal(
        drawn.trajectory[-1], drawn.values
    )
    for number in range(4):
        during = drawn.trajectory[4 * number : 4 * number + 5]
        assert (during[:, :, : 4 * number] == drawn.values[:, : 4 * number]).all()
        assert (during[:, :, 4 * number + 4 :] == drawn.trajectory[0, :, 4 * number + 4 :]).all()
    kept, written = drawn.fields["frames"], drawn.fields["written"]
    assert len(kept) == 8 and torch.equal(kept[-1], drawn.values[0])
    assert written.tolist() == [16, 4, 8, 8, 12, 12, 16, 16]
    assert drawn.fields["noise"][0] == pytest.approx(5.0) and drawn.fields["noise"][-1] == 0
