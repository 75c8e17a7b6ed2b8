"""The language model's parts as its README describes them, and its memory."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.processes.score_entropy import LossTargets
from support.models.draws import seeded
from support.models.plain_dlm import plain_forward
from support.models.results import Results
from support.models.small_networks import small_dlm

SIGMA = torch.tensor([0.001, 0.1, 1.0])


def some_targets(tokens, **changes):
    x0 = (tokens + 3) % 11
    sigma = SIGMA[:, None].expand_as(tokens)
    return LossTargets(
        **{"x0": x0, "sigma": sigma, "weight": torch.full(tokens.shape, 0.5), **changes}
    )


def test_initial_weights():
    """Embedding: Kaiming uniform, a = sqrt 5, so 1 / sqrt(512); modulations and output 0; norms 1;
    the rest likewise uniform, 1 / sqrt(inputs), biases too."""
    network = FAMILY.build_network(DLMSpec(vocabulary=500, depth=2))
    assert network.embedding.weight.abs().max().item() == pytest.approx(512**-0.5, rel=0.01)
    assert network.embedding.weight.std().item() == pytest.approx((3 * 512) ** -0.5, rel=0.01)
    zeroed = [
        network.output.modulation,
        network.output.log_scores,
        *(block.modulation for block in network.blocks),
    ]
    for module in zeroed:
        assert not module.weight.any() and not module.bias.any()
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.RMSNorm):
            assert module.eps == 1e-6 and (module.weight == 1).all(), name
        elif isinstance(module, torch.nn.Linear) and module not in zeroed:
            assert module.weight.abs().max().item() == pytest.approx(
                module.in_features**-0.5, rel=0.01
            ), name
    assert network.sigma_map.out.bias.any()


@pytest.mark.parametrize("block_size", [None, 4])
def test_as_written_on_the_page(tokens, block_size):
    network = small_dlm(block_size=block_size)
    block = torch.arange(12) // 4
    mask = None if block_size is None else block[None] <= block[:, None]
    sigma = torch.rand(3, 12, generator=seeded(4)).double()
    expected = plain_forward(network, tokens, sigma, mask)
    assert_close(network(tokens, sigma), expected, rtol=1e-10, atol=1e-12)


def test_noise_levels_by_sample_segment_and_token_agree_where_they_are_constant(tokens):
    network = small_dlm()
    for sigma in (SIGMA.double(), torch.tensor([[0.1, 0.2, 0.9]]).expand(3, 3).double()):
        by_token = sigma.view(3, -1).repeat_interleave(12 // sigma.view(3, -1).shape[1], dim=1)
        assert_close(network(tokens, sigma), network(tokens, by_token), rtol=1e-12, atol=1e-12)


def test_losses_count_by_weight(tokens):
    losses = small_dlm(block_size=4)(tokens, SIGMA, some_targets(tokens))
    assert losses.per_token.shape == (3, 12) and not losses.per_token.requires_grad
    assert_close(losses.total.double(), 0.5 * losses.per_token.sum().double())


@pytest.mark.parametrize("block_size", [None, 64])
def test_log_scores_are_in_memory_once_and_attention_matrices_not_at_all(block_size):
    spec = DLMSpec(
        length=128, vocabulary=520, depth=1, num_heads=8, width=32, block_size=block_size
    )
    network, (x, sigma) = (
        FAMILY.build_network(spec).bfloat16(),
        FAMILY.example_inputs(spec, 4, device="cpu"),
    )
    # an attention matrix would hold 4 * 8 * 128 * 128, more
    with Results() as results:
        network(x, sigma)
    large = [each for _, each in results.made if each.numel() >= 4 * 128 * 520]
    assert len({each.untyped_storage().data_ptr() for each in large}) == 1
    assert large[0].dtype == torch.bfloat16


def test_wide_noise_levels_stay_finite(tokens):
    scores = small_dlm()(tokens, torch.tensor([1e-5, 20.0, 100.0]))
    assert scores.isfinite().all()
