"""Drawn text under a scorer: perplexity against closed forms, the entropy beside it and its fall,
refusals.
"""

import numpy as np
import pytest
import torch
from torch import nn

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.quality import check_quality, quality_names
from ditlab.quality.text import TextQuality
from ditlab.spec.encoders import Scorer
from ditlab_addons.figures.networks.scorer import CausalScorer
from ditlab_models.contract import TextCodec
from support.chain import chain_experiment as experiment
from support.damage import refused
from support.datasets.tiny_scorers import write_chain_scorer, write_gpt2

pytest.importorskip("transformers")
CPU = torch.device("cpu")


class TrueScores(nn.Module):
    """The network that knows the chain."""

    def __init__(self, law):
        super().__init__()
        self.law, self.weight = law, nn.Parameter(torch.zeros(()))

    def forward(self, x, sigma):
        return self.law.log_scores(x, sigma.view(-1, 1)).float()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def chain(home):
    return open_data(experiment().data, home)


@pytest.fixture(scope="module")
def folder(chain, tmp_path_factory):
    return write_chain_scorer(
        tmp_path_factory.mktemp("scorer"), chain.references["optimal"].transition
    )


def measured(chain, home, folder, temperature, said):
    spec = experiment(evaluation__scorer={"model": str(folder)}, sampling__temperature=temperature)
    quality = TextQuality(spec, chain, home, CPU, said.append)
    drawn = quality.draw(TrueScores(chain.references["optimal"]), 200, 200)
    found = quality.measure(drawn)
    assert tuple(found) == quality_names(spec, chain)
    quality.measure(drawn)  # says it once
    return found


def test_a_low_temperature_gets_a_better_perplexity_and_a_warning_that_the_entropy_fell(
    chain, home, folder
):
    calm, loud = [], []
    one, half = measured(chain, home, folder, 1.0, calm), measured(chain, home, folder, 0.5, loud)
    assert one["quality/generative_perplexity"] == pytest.approx(
        one["quality/generative_perplexity_held_out"], rel=0.1
    )
    assert half["quality/generative_perplexity_high"] < one["quality/generative_perplexity_low"]
    assert half["quality/token_entropy_high"] < half["quality/token_entropy_held_out_low"]
    assert half["quality/distinct_2"] < one["quality/distinct_2"]
    (said,) = loud
    assert not calm and "it repeats itself" in said and "raise sampling.temperature" in said


def test_the_scorer_of_a_known_chain_gives_its_log_probabilities(chain, folder):
    """Rows of 100 tokens are two windows of at most 64, whose first tokens are not scored."""
    law = chain.references["optimal"]
    tokens = np.random.default_rng(0).integers(8, size=(5, 100))
    nats, counts = CausalScorer(Scorer(model=str(folder)), None, 8).score(tokens, CPU)
    log_p = np.log(law.transition)[tokens[:, :-1], tokens[:, 1:]]
    expected = -(log_p.sum(1) - log_p[:, 63])
    assert counts.tolist() == [98] * 5 and nats == pytest.approx(expected, rel=1e-5)


def test_text_is_decoded_and_encoded_again_with_the_scorers_own_end(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_gpt2(tmp_path / "gpt2")
    codec = TextCodec(
        lambda text: list(text.encode()), lambda ids: bytes(ids).decode(errors="replace"), 256, 255
    )
    row = np.array([*b"a red seven", 255, *b"two"])
    nats, counts = CausalScorer(Scorer(model=str(folder)), codec, 256).score(row[None], CPU)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    first, second = tokenizer(["a red seven", "two"])["input_ids"]
    ids = [*first, tokenizer.eos_token_id, *second]
    assert counts.tolist() == [len(ids) - 1] and len(ids) <= 16
    with torch.no_grad():
        loss = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss
    assert nats[0] == pytest.approx(float(loss) * (len(ids) - 1), rel=1e-5)


def test_scorers_that_do_not_fit_are_refused(chain, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    other = write_gpt2(tmp_path / "gpt2")
    hub = "is no folder here, and no scorer is downloaded on the way; fetch it"
    vocabulary = "has a vocabulary of 290 tokens and the data one of 8, without a tokeniser"
    digest = "has the SHA-256 .*, and evaluation.scorer.sha256=0000"
    for model, more, reason in (
        ("openai-community/gpt2", {}, hub),
        (tmp_path / "empty", {}, "holds no config.json and no weights"),
        (folder, {"sha256": "0" * 64}, digest),
        (other, {}, vocabulary),
    ):
        spec = experiment(evaluation__scorer={"model": str(model), **more})
        with refused(rf"evaluation\.scorer\.model=.*{reason}"):
            check_quality(spec, chain)
