"""The language model's exact parameter counts, and its parts as its README describes them."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.parameters import count_parameters
from ditlab_models.processes.score_entropy import LossTargets
from ditlab_models.shape_trace import trace_shapes
from support.models.draws import seeded
from support.models.plain_dlm import plain_forward, recompute

SIGMA = torch.tensor([0.001, 0.1, 1.0])


def some_targets(tokens, **changes):
    x0 = (tokens + 3) % 11
    sigma = SIGMA[:, None].expand_as(tokens)
    return LossTargets(
        **{"x0": x0, "sigma": sigma, "weight": torch.full(tokens.shape, 0.5), **changes}
    )


def test_parameters_of_the_published_setting():
    count = count_parameters(DLMSpec(), DLMObjectiveSpec())
    assert count.total == count.trainable == 79_245_649
    assert count.components == {
        "embedding": 25_731_584,
        "sigma_map": 49_408,
        "blocks": 6 * 4_591_616,
        "norm": 512,
        "output": 25_914_449,
    }
    assert count.training_only == {}


def test_parts_of_the_published_setting():
    rows = {row.path: row for row in trace_shapes(DLMSpec(), batch_size=2)}
    assert rows[""].inputs == [(2, 1024), (2,)]
    assert rows[""].outputs == [(2, 1024, 50257)]
    block = {
        "attention": 1_048_576,
        "mlp": 3_145_728,
        "modulation": 396_288,
        "attention_norm": 512,
        "mlp_norm": 512,
    }
    for part, parameters in block.items():
        assert rows[f"blocks.5.{part}"].parameters == parameters
    assert rows["output.log_scores"].parameters == 25_781_841
    assert rows["output.modulation"].parameters == 132_096
    assert rows["output.norm"].parameters == 512


@pytest.mark.parametrize("changes", [{"length": 128}, {"block_size": 128}])
def test_no_parameter_depends_on_the_length_or_on_blocks(changes):
    assert count_parameters(DLMSpec(**changes)).total == 79_245_649


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


def test_untrained_blocks_are_the_identity_and_all_log_scores_0(tokens):
    network = FAMILY.build_network(
        DLMSpec(length=12, vocabulary=11, depth=2, num_heads=2, width=16)
    )
    seen = []
    for block in network.blocks:
        block.register_forward_hook(
            lambda _module, inputs, output: seen.append((inputs[0], output))
        )
    assert torch.equal(network(tokens, SIGMA), torch.zeros(3, 12, 11))
    assert len(seen) == 2 and all(torch.equal(before, after) for before, after in seen)


@pytest.mark.parametrize("block_size", [None, 4])
def test_as_written_on_the_page(small_dlm, tokens, block_size):
    network = small_dlm(block_size=block_size)
    block = torch.arange(12) // 4
    mask = None if block_size is None else block[None] <= block[:, None]
    sigma = torch.rand(3, 12, generator=seeded(4)).double()
    expected = plain_forward(network, tokens, sigma, mask)
    assert_close(network(tokens, sigma), expected, rtol=1e-10, atol=1e-12)


def test_noise_levels_by_sample_segment_and_token_agree_where_they_are_constant(small_dlm, tokens):
    network = small_dlm()
    for sigma in (SIGMA.double(), torch.tensor([[0.1, 0.2, 0.9]]).expand(3, 3).double()):
        by_token = sigma.view(3, -1).repeat_interleave(12 // sigma.view(3, -1).shape[1], dim=1)
        assert_close(network(tokens, sigma), network(tokens, by_token), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block_size", [None, 4])
def test_losses_count_by_weight_and_their_gradient_reaches_every_parameter(
    small_dlm, tokens, block_size
):
    network = small_dlm(block_size=block_size)
    losses = network(tokens, SIGMA, some_targets(tokens))
    assert losses.per_token.shape == (3, 12) and not losses.per_token.requires_grad
    assert_close(losses.total.double(), 0.5 * losses.per_token.sum().double())
    losses.total.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("block_size", [None, 4])
def test_checkpointed_modules_can_be_recomputed(small_dlm, tokens, block_size):
    network = small_dlm(block_size=block_size)
    assert list(network.checkpointed_modules()) == list(network.blocks)

    def gradients():
        total = network(tokens, SIGMA, some_targets(tokens)).total
        return torch.autograd.grad(total, list(network.parameters()))

    before = gradients()
    recompute(network)
    assert_close(gradients(), before)


@pytest.mark.parametrize("block_size", [None, 4])
def test_half_precision_runs(small_dlm, tokens, block_size):
    network = small_dlm(block_size=block_size).float()
    full, targets = network(tokens, SIGMA), some_targets(tokens)
    losses = network(tokens, SIGMA, targets)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(network(tokens, SIGMA).float(), full, rtol=0.1, atol=0.3)
        half = network(tokens, SIGMA, targets)
    assert_close(half.total.float(), losses.total.float(), rtol=0.2, atol=0)
    half.total.backward()
    network = network.bfloat16()
    assert network(tokens, SIGMA).dtype == torch.bfloat16
    assert_close(network(tokens, SIGMA).float(), full, rtol=0.1, atol=0.3)
    network(tokens, SIGMA, targets).total.backward()


@pytest.mark.parametrize("block_size", [None, 4])
def test_forward_pass_is_one_graph(small_dlm, tokens, block_size):
    network = small_dlm(block_size=block_size, depth=1)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert_close(compiled(tokens, SIGMA), network(tokens, SIGMA))


class LargeTensors(TorchDispatchMode):
    """Counter of new tensors with at least a number of entries."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.storages: dict[int, str] = {}
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple) else (out,):
            if isinstance(each, torch.Tensor) and each.numel() >= self.least:
                self.storages[each.untyped_storage().data_ptr()] = str(func)
                self.kept.append(each)  # so that no address comes twice
        return out


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
    with LargeTensors(4 * 128 * 520) as made:
        network(x, sigma)
    assert len(made.storages) == 1 and made.kept[0].dtype == torch.bfloat16, made.storages


def test_wide_noise_levels_stay_finite(small_dlm, tokens):
    scores = small_dlm()(tokens, torch.tensor([1e-5, 20.0, 100.0]))
    assert scores.isfinite().all()
