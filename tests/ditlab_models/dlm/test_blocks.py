"""Block-causal networks: attention masks, the clean and noisy copies of training, the cache of
sampling.
"""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dlm.network import dense_mask
from ditlab_models.layers.attention import KVCache
from ditlab_models.processes.score_entropy import LossTargets
from support.models.draws import seeded
from support.models.plain_dlm import plain_forward
from support.models.small_networks import small_dlm

SIGMA_MIN = 0.001
SIGMA_CLEAN = torch.full((3,), SIGMA_MIN, dtype=torch.float64)
EXACT = {"rtol": 0, "atol": 1e-10}


def mask_of(length, block_size, copies=1, first=0):
    return dense_mask(length, block_size, copies, None, torch.device("cpu"), first)


@pytest.fixture
def network():
    """A network with blocks of 4."""
    return small_dlm(block_size=4)


@pytest.fixture
def levels():
    """A noise level for each of 3 blocks of 3 samples."""
    return torch.rand(3, 3, generator=seeded(5)).double()


def block(values, number):
    return values[:, 4 * number : 4 * number + 4]


def two_copies(network, x, x0, levels):
    """The log scores that the losses of a pass with a clean copy are computed from."""
    caught = []
    hook = network.output.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs))
    by_token = levels.repeat_interleave(4, dim=1)
    network(x, levels, LossTargets(x0, by_token, torch.ones_like(by_token), clean_sigma=SIGMA_MIN))
    hook.remove()
    h, condition, tokens, _ = caught[0]
    assert torch.equal(tokens, x)
    return network.output(h, condition, x)


def test_mask_of_two_copies_of_two_blocks_of_two():
    assert mask_of(4, 2, copies=2).int().tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 1],
        [1, 1, 0, 0, 0, 0, 1, 1],
    ]


def test_a_mask_behind_cached_tokens_is_the_rest_of_the_whole_one():
    assert torch.equal(mask_of(8, 4, first=4), mask_of(12, 4)[4:])
    assert mask_of(4, 4, first=8) is None and mask_of(3, 4) is None


def test_both_copies_at_once_as_written_on_the_page(network, tokens, levels):
    x0 = (tokens * 2 + 1) % 11
    sigma = torch.cat(
        (torch.full((3, 12), SIGMA_MIN).double(), levels.repeat_interleave(4, dim=1)), dim=1
    )
    both = torch.cat((x0, tokens), dim=1)
    expected = plain_forward(
        network, both, sigma, mask_of(12, 4, copies=2), torch.arange(12).repeat(2)
    )[:, 12:]
    assert_close(two_copies(network, tokens, x0, levels), expected, **EXACT)


@torch.no_grad()
def test_several_blocks_at_once_can_be_committed_and_followed(network, tokens, levels):
    """A prompt; and in a pass over several blocks, none depends on later ones."""
    cache = KVCache(network.spec.depth, network.spec.length)
    network(tokens[:, :4], SIGMA_CLEAN, cache=cache, commit=True)
    sigma = torch.cat((torch.full((3, 1), SIGMA_MIN).double(), levels[:, 1:]), dim=1)
    rest = network(tokens[:, 4:], sigma[:, 1:], cache=cache)
    assert_close(rest, network(tokens, sigma)[:, 4:], **EXACT)
    assert cache.length == 4


@torch.no_grad()
def test_the_cache_under_autocast_and_its_room(tokens):
    network = small_dlm(block_size=4).float()
    cache = KVCache(network.spec.depth, network.spec.length)
    with torch.autocast("cpu", torch.bfloat16):
        for number in range(3):
            network(block(tokens, number), SIGMA_CLEAN, cache=cache, commit=True)
        with pytest.raises(AssertionError, match="16 tokens do not fit into a cache of 12"):
            network(block(tokens, 0), torch.ones(3), cache=cache)
