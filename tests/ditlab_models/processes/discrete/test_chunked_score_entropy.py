"""The loss in chunks: the plain loss' values and gradients in a chunk's memory; no gradients in
evaluation.
"""

from unittest import mock

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from ditlab_models.processes.score_entropy import (
    CHUNK_BYTES,
    COLUMNS,
    CompiledExpMinus,
    LossTargets,
    chunked_score_entropy,
    exp_minus,
)
from ditlab_models.processes.uniform_graph import corrupt
from support.models.draws import seeded
from support.models.plain_score_entropy import score_entropy
from support.models.results import Results

B, T, D, V = 2, 13, 6, 31
TOKEN_BYTES = V * 8  # of a token's log scores in float64
SCORES = ("log", "softmax")


class Problem:
    """Random inputs, weights and targets."""

    def __init__(self, score="log", dtype=torch.float64, scale=0.5):
        generator = seeded()
        self.hidden, self.weight, self.bias = (
            (scale * torch.randn(shape, generator=generator, dtype=torch.float64))
            .to(dtype)
            .requires_grad_()
            for shape in ((B, T, D), (V, D), (V,))
        )
        x0 = torch.randint(V, (B, T), generator=generator)
        sigma = torch.logspace(-3, 0, B * T).view(B, T)
        move, jump, weight = torch.rand(3, B, T, generator=generator)
        self.x = corrupt(x0, sigma.clamp(min=0.7), move, jump, V)
        assert 3 < (self.x == x0).sum() < B * T - 3
        self.targets = LossTargets(x0, sigma, weight, score)

    @property
    def inputs(self):
        return self.hidden, self.weight, self.bias

    def plain(self, dtype=None):
        inputs = [each if dtype is None else each.to(dtype) for each in self.inputs]
        output = functional.linear(*inputs)
        return score_entropy(
            output, self.x, self.targets.x0, self.targets.sigma, self.targets.score
        )

    def weighted(self, losses):
        return (losses * self.targets.weight).sum()

    def chunked(self, chunk_bytes=CHUNK_BYTES["cpu"]):
        with mock.patch.dict(CHUNK_BYTES, cpu=chunk_bytes):
            return chunked_score_entropy(*self.inputs, self.x, self.targets)


def num_products(results):
    """Number of matrix products."""
    aten = torch.ops.aten
    return sum(operation in (aten.mm, aten.addmm, aten.addmm_) for operation, _ in results.made)


def largest(results):
    """Entries of the largest result."""
    return max(each.numel() for _, each in results.made)


def gradients(total, problem):
    return torch.autograd.grad(total, problem.inputs)


def errors(found, expected):
    """Relative error of each gradient."""
    pairs = zip(found, expected, strict=True)
    return [((one - other).norm() / other.norm()).item() for one, other in pairs]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tokens_a_chunk", [0, 1, 5, B * T, 1000])
def test_values_and_gradients_are_the_plain_ones(score, tokens_a_chunk):
    problem = Problem(score)
    losses = problem.plain()
    found = problem.chunked(chunk_bytes=tokens_a_chunk * TOKEN_BYTES)
    assert_close(found.per_token, losses.detach(), rtol=1e-12, atol=1e-12)
    assert not found.per_token.requires_grad
    expected = problem.weighted(losses)
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-12)
    found, expected = gradients(found.total, problem), gradients(expected, problem)
    assert max(errors(found, expected)) < 1e-12


@pytest.mark.parametrize("score", SCORES)
def test_rows_further_apart_give_the_same(score, monkeypatch):
    problem, found = Problem(score), []
    for columns in (1, V + 3):
        monkeypatch.setitem(COLUMNS, "cpu", columns)
        losses = problem.chunked(chunk_bytes=5 * TOKEN_BYTES)
        found.append([losses.per_token, *gradients(losses.total, problem)])
    assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("dtype", "autocast", "error"),
    [
        (torch.float32, False, 1e-5),
        (torch.bfloat16, False, 2e-2),
        (torch.float32, True, 2e-2),
    ],
)
def test_other_precisions_are_the_plain_loss_of_theirs(score, dtype, autocast, error):
    """Sums are in float32, gradients in the weights' dtype; autocast multiplies in bfloat16."""
    problem = Problem(score, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = problem.chunked(chunk_bytes=5 * TOKEN_BYTES)
        expected = problem.weighted(problem.plain())
    assert found.total.dtype == found.per_token.dtype == torch.float32
    assert found.total.item() == pytest.approx(expected.item(), rel=error / 2)
    by_chunk, plain = gradients(found.total, problem), gradients(expected, problem)
    assert all(each.dtype == dtype for each in by_chunk)
    assert max(errors(by_chunk, plain)) < error


def test_autocast_multiplies_in_bf16():
    problem = Problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = problem.chunked()
    assert abs(found.total.item() / problem.chunked().total.item() - 1) > 1e-7


def test_incoming_gradient_multiplies_and_may_be_applied_twice():
    problem = Problem()
    total = problem.chunked().total
    (once,) = torch.autograd.grad(total, problem.weight, retain_graph=True)
    (scaled,) = torch.autograd.grad(total.square(), problem.weight)
    assert_close(scaled, 2 * total.detach() * once)


def test_a_huge_output_at_the_token_itself_does_no_harm():
    problem = Problem(dtype=torch.float32)
    with torch.no_grad():
        problem.bias[int(problem.x[0, 0])] = 200.0
    problem.targets.x0.fill_(int(problem.x[0, 0]))
    problem.x.fill_(int(problem.x[0, 0]))
    found = problem.chunked()
    assert found.total.isfinite()
    assert all(each.isfinite().all() for each in gradients(found.total, problem))


def test_only_wanted_gradients_are_computed():
    problem = Problem()
    products = {}
    for name in ("all", "hidden", "none"):
        problem.weight.requires_grad_(name == "all")
        problem.bias.requires_grad_(name == "all")
        problem.hidden.requires_grad_(name != "none")
        with Results() as results:
            total = problem.chunked(chunk_bytes=5 * TOKEN_BYTES).total
        products[name] = num_products(results)
        assert total.requires_grad == (name != "none")
        if name == "hidden":
            total.backward()
            assert [each.grad is None for each in problem.inputs] == [False, True, True]
    assert 6 == products["none"] < products["hidden"] < products["all"], "chunks' log scores alone"


@pytest.mark.parametrize("score", SCORES)
def test_evaluation_computes_and_keeps_nothing_for_gradients(score):
    problem = Problem(score)
    trained = problem.chunked(chunk_bytes=5 * TOKEN_BYTES)
    with torch.no_grad(), Results() as results:
        found = problem.chunked(chunk_bytes=5 * TOKEN_BYTES)
    assert num_products(results) == 6 and found.total.grad_fn is None
    assert largest(results) <= max(5 * V, V * D, B * T * D)
    assert torch.equal(found.per_token, trained.per_token)
    assert_close(found.total, trained.total.detach())


@pytest.mark.parametrize("score", SCORES)
def test_no_result_is_larger_than_a_chunk_or_a_gradient(score):
    problem = Problem(score)
    with Results() as results:
        problem.chunked(chunk_bytes=3 * TOKEN_BYTES).total.backward()
    assert largest(results) <= max(3 * V, V * D, B * T * D) < B * T * V


def test_inside_a_compiled_function():
    problem = Problem()

    def double(hidden, weight, bias):
        return 2 * chunked_score_entropy(hidden, weight, bias, problem.x, problem.targets).total

    compiled = torch.compile(double, backend="eager")
    found, expected = compiled(*problem.inputs), double(*problem.inputs)
    assert found.item() == expected.item()
    pairs = zip(gradients(found, problem), gradients(expected, problem), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elementwise_pass_can_be_compiled(dtype):
    """On a GPU it is compiled; here it is traced, with distinct inputs and outputs."""
    compiled = torch.compile(exp_minus, backend="aot_eager", dynamic=True, fullgraph=True)
    for rows in (4, 3):
        values, less = torch.randn(rows, V).to(dtype), torch.rand(rows, 1)
        rows_apart = torch.zeros(rows, V + 3, dtype=dtype)
        changed = rows_apart[:, :V].copy_(values)
        total = compiled(changed, less, True)
        assert_close(total, values.float().exp().sum(1, keepdim=True))
        assert not rows_apart[:, V:].any()
        assert_close(changed, (values.float().exp() - less).to(dtype))


def test_without_a_compiler_the_elementwise_pass_runs_as_it_is():
    class Broken(CompiledExpMinus):
        calls = 0

        def __init__(self):
            super().__init__()
            self._function = self.fails

        def fails(self, *_):
            self.calls += 1
            raise torch._dynamo.exc.BackendCompilerFailed(
                self.fails, RuntimeError("no compiler"), None
            )

    broken, values, less = Broken(), torch.randn(3, V), torch.rand(3, 1)
    for _ in range(2):
        total = broken(changed := values.clone(), less, True)
        assert_close(total, values.exp().sum(1, keepdim=True))
        assert_close(changed, values.exp() - less)
    assert broken.calls == 1
