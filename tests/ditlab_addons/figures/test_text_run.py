"""A run on text: requests of lm-evaluation-harness, and a scorer that is named after training."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from rich.text import Text
from torch import nn

import ditlab
from ditlab.errors import UserError
from ditlab.spec.yaml_text import dump_yaml
from ditlab_addons.figures.harness import BoundedTexts
from ditlab_models.processes.score_entropy import TokenLosses
from support.damage import refused
from support.datasets.tiny_scorers import write_gpt2
from support.models.plain_score_entropy import score_entropy
from support.trainings.text_run import VOCABULARY, train_on_text

pytest.importorskip("tokenizers")
CONTEXT = "a context that is longer than a window of so many tokens, and then some" * 4


@dataclass
class Request:
    args: tuple


class Uniform(nn.Module):
    """All log scores 0: every token costs ln V."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, x, sigma, targets=None, documents=None):
        scores = torch.zeros(*x.shape, VOCABULARY)
        if targets is None:
            return scores
        self.seen.append(x)
        return TokenLosses(x.sum(), score_entropy(scores, x, targets.x0, targets.sigma))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps, with quality at its end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DITLAB_HOME", str(tmp_path_factory.mktemp("home")))
        patched.chdir(tmp_path_factory.mktemp("work"))
        yield train_on_text()


@pytest.fixture
def texts(run):
    model = BoundedTexts(run._opened().saved(), draws=64)
    model._network = Uniform()
    return model


def test_requests_of_a_network_that_knows_nothing_cost_ln_v_a_token(texts):
    encode = texts._text.encode
    requests = [Request((CONTEXT, " and so on")), Request(("", CONTEXT))]
    (first, greedy), (second, _) = texts.loglikelihood(requests)
    num, whole = len(encode(CONTEXT + " and so on")) - len(encode(CONTEXT)), len(encode(CONTEXT))
    assert not greedy and abs(first + num * math.log(VOCABULARY)) < 4 * texts.errors[0]
    assert whole > 2 * 63 and second == pytest.approx(-whole * math.log(VOCABULARY), rel=0.02)
    context = torch.tensor(encode(CONTEXT)[-(64 - num) :])
    assert all(torch.equal(row[: 64 - num], context) for x in texts._network.seen[:8] for row in x)
    assert texts.loglikelihood(requests[1:])[0][0] == second  # whatever comes before
    assert texts.loglikelihood_rolling([Request((CONTEXT,))]) == [second]


def test_texts_are_drawn_behind_the_context_up_to_a_stop(texts):
    drawn = texts.generate_until([Request((CONTEXT, {"max_gen_toks": 30}))] * 2)
    assert drawn[0] == drawn[1] and len(drawn[0]) > 1
    stop = drawn[0][1]
    (cut,) = texts.generate_until([Request((CONTEXT, {"max_gen_toks": 30, "until": [stop]}))])
    assert cut == drawn[0].split(stop)[0]


def test_a_missing_harness_and_a_run_without_text_are_one_sentence(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with refused("`pip install lm_eval` brings it"):
        ditlab.harness_model(run)


@pytest.mark.slow
def test_a_scorer_is_named_after_training(run, tmp_path):
    pytest.importorskip("transformers")
    overrides = [f"evaluation.scorer.model={write_gpt2(tmp_path / 'gpt2', positions=64)}"]
    found = run.evaluate(quality=100, overrides=overrides)
    names = list(found.metrics)
    assert names[0] == "quality/generative_perplexity"
    assert "quality/token_entropy" in names
    assert found.num_unsent is None
    shown = [str(each) for each in found.terminal_tables() if isinstance(each, Text)]
    assert any("read perplexity beside entropy" in line for line in shown)
    with pytest.raises(
        UserError, match="changes samples alone, and none are drawn; add --quality NUM"
    ):
        run.evaluate(overrides=overrides)


@pytest.mark.slow
def test_a_sweep_over_temperatures_measures_perplexity_beside_entropy(run, tmp_path):
    pytest.importorskip("transformers")
    sweep = {
        "name": "temperatures",
        "base": {"run": run.id},
        "metric": "quality/generative_perplexity",
        "samples": 20,
        "seeds": 2,
        "space": {"sampling.temperature": {"kind": "grid", "values": [0.5, 1.0]}},
        "fixed": {"evaluation.scorer": {"model": str(write_gpt2(tmp_path / "gpt2", positions=64))}},
    }
    (tmp_path / "sweep.yaml").write_text(dump_yaml(sweep))
    result = ditlab.sweep_samples(tmp_path / "sweep.yaml")
    names = {
        "quality/token_entropy",
        "quality/distinct_2",
        "quality/generative_perplexity_held_out",
    }
    assert result.status == "finished"
    assert all(names <= set(trial.metrics) for trial in result.summary.trials)


TASKS = {
    "own_choice": (
        "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\n"
        "doc_to_choice: [even, odd]\nmetric_list: [{metric: acc}]\n"
    ),
    "own_rolling": (
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{question}}'\n"
        "metric_list: [{metric: bits_per_byte}]\n"
    ),
    "own_text": (
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: "
        "'{{answer}}'\ngeneration_kwargs: {until: ['.'], max_gen_toks: 8}\nmetric_list: "
        "[{metric: exact_match}]\n"
    ),
}


def test_tasks_on_disk_are_run(run, tmp_path):
    lm_eval, managers = pytest.importorskip("lm_eval"), pytest.importorskip("lm_eval.tasks")
    rows = [{"question": f"{n} and one is", "answer": n % 2} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        place = (
            "dataset_path: json\ndataset_kwargs: {data_files: {test: "
            f"{tmp_path / 'rows.jsonl'}}}}}\n"
        )
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\n{place}test_split: test\n{text}")
    tasks = managers.TaskManager(include_path=str(tmp_path), include_defaults=False)
    model = ditlab.harness_model(run, draws=4)
    found = lm_eval.simple_evaluate(
        model, tasks=list(TASKS), task_manager=tasks, bootstrap_iters=0
    )["results"]
    assert 0 <= found["own_choice"]["acc,none"] <= 1 and found["own_text"]["exact_match,none"] == 0
    answered = model.loglikelihood_rolling([Request((row["question"],)) for row in rows])
    num_bytes = sum(len(row["question"].encode()) for row in rows)
    expected = -sum(answered) / num_bytes / math.log(2)
    assert found["own_rolling"]["bits_per_byte,none"] == pytest.approx(expected)
