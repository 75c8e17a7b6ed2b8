"""Attention within the documents of a row: each document is scored as if it stood alone."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ditlab_models.contract import TextCodec
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.network import TokenNoise, document_numbers
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.processes.specs import TokenNoiseSchedule
from support.models.draws import KeyedNoise, seeded
from support.models.plain_dlm import plain_forward, recompute
from support.models.small_networks import small_dlm

END, V = 10, 11
ROWS = torch.tensor(
    [[1, 2, 3, END, 4, 5, 6, 7, 8, 9, 0, END], [9, 8, 7, 6, 5, 4, 3, END, 2, 1, 0, 3]]
)
PARTS = [(0, 0, 4), (0, 4, 12), (1, 0, 8), (1, 8, 12)]
"""Documents of ROWS: row, first token, end. All begin at a multiple of 4, a block; the last one
goes on elsewhere.
"""
SIGMA = torch.tensor([0.3, 0.9], dtype=torch.float64)
CODEC = TextCodec(encode=lambda text: [], decode=lambda ids: "", vocabulary=V, end=END)


def noise_of(block_size=None, end=END):
    return TokenNoise(TokenNoiseSchedule(), V, block_size, "log", end)


def token_losses(network, noise, rows):
    """Losses of tokens noised by fixed draws, which depend on a token alone."""
    draws = torch.rand(2, *ROWS.shape, generator=seeded(5))
    row, first, end = rows
    at = (slice(None) if row is None else slice(row, row + 1), slice(first, end))
    levels = noise.at_time(torch.full(noise.time_shape(ROWS[at]), 0.8))
    return noise.losses(network, ROWS[at], levels, draws[0][at], draws[1][at])


def test_a_document_ends_with_its_end_token():
    assert document_numbers(ROWS, END).tolist() == [[0] * 4 + [1] * 8, [0] * 8 + [1] * 4]
    assert document_numbers(torch.tensor([[END, END, 1]]), END).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("block_size", [None, 3, 4])
def test_as_written_on_the_page(block_size):
    network, documents = small_dlm(block_size=block_size), document_numbers(ROWS, END)
    block = torch.arange(12) // (block_size or 12)
    for row in range(2):
        mask = (documents[row][:, None] == documents[row][None]) & (block[None] <= block[:, None])
        expected = plain_forward(network, ROWS[row : row + 1], SIGMA[row].expand(1, 12), mask)
        found = network(
            ROWS[row : row + 1], SIGMA[row : row + 1], documents=documents[row : row + 1]
        )
        assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("block_size", [None, 4])
def test_losses_and_gradients_are_the_sums_of_those_of_the_documents_alone(
    block_size, checkpointed
):
    network, noise = small_dlm(block_size=block_size), noise_of(block_size)
    if checkpointed:
        recompute(network)
    packed = token_losses(network, noise, (None, 0, 12))
    packed.total.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
    network.zero_grad()
    for row, first, end in PARTS:
        alone = token_losses(network, noise_of(block_size, end=None), (row, first, end))
        assert_close(
            packed.per_token[row : row + 1, first:end], alone.per_token, rtol=1e-6, atol=1e-9
        )
        (alone.total * (end - first) / ROWS.numel()).backward()
    for name, parameter in network.named_parameters():
        assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-9, msg=name)


def test_the_objective_numbers_documents_by_the_clean_tokens():
    """Noise moves end tokens; documents are what they are."""

    class Recorder(nn.Module):
        ends_moved = False

        def forward(self, x, sigma, targets, documents=None):
            self.documents = documents
            self.ends_moved |= not torch.equal(x == END, targets.x0 == END)
            return type("Losses", (), {"total": torch.zeros(()), "per_token": torch.zeros(x.shape)})

    model, network = DLMSpec(length=12, vocabulary=V, num_heads=2, width=16), Recorder()
    for packing, expected in (("masked", document_numbers(ROWS, END)), ("joined", None)):
        text = TextCodec(**{**vars(CODEC), "packing": packing})
        objective = FAMILY.build_objective(DLMObjectiveSpec(), model, text)
        for compute in (objective.loss, objective.metrics):
            compute(network, {"tokens": ROWS}, KeyedNoise(0))
            assert (
                expected is None
                if network.documents is None
                else torch.equal(network.documents, expected)
            )
        assert network.ends_moved


@pytest.mark.slow
def test_forward_pass_is_one_graph():
    network, documents = small_dlm(block_size=4, depth=1), document_numbers(ROWS, END)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert_close(
        compiled(ROWS, SIGMA, documents=documents), network(ROWS, SIGMA, documents=documents)
    )
