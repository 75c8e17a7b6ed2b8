"""Features of captions equal those of transformers, whatever else is encoded with them."""

import pytest
import torch

from ditlab.encoders.text import FrozenTextEncoder

TEXTS = ["a red seven", "nothing", "a green circle on the left of a blue square", "sept rouge, é"]
LENGTH = 32


@pytest.fixture(scope="module")
def encoder(text_folder):
    return FrozenTextEncoder(str(text_folder), 32, LENGTH)


@pytest.fixture(scope="module")
def direct(text_folder):
    """(tokeniser, network) by transformers alone, as a person would use them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(text_folder), AutoModelForCausalLM.from_pretrained(
        text_folder
    ).model.eval()


def test_features_are_the_last_hidden_states(encoder, direct):
    tokenizer, network = direct
    made = encoder.encode(TEXTS)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = network(**inputs).last_hidden_state
    mask = inputs["attention_mask"].bool()
    assert torch.equal(made["text_mask"], mask) and made["text_mask"].dtype == torch.bool
    assert torch.allclose(made["text"][mask], expected[mask], atol=1e-5)
    assert not made["text"][~mask].any()


def test_pooled_is_the_last_token_that_is_no_padding(encoder):
    made = encoder.encode(TEXTS)
    lengths = encoder.num_tokens(TEXTS)
    assert len(set(lengths)) == len(TEXTS)
    for row, length in enumerate(lengths):
        assert made["text_mask"][row].sum() == length
        assert torch.equal(made["text_pooled"][row], made["text"][row, length - 1])


def test_padding_does_not_change_features(encoder, monkeypatch):
    """Captions of all lengths in one pass, as on a GPU."""
    one_by_one = encoder.encode(TEXTS)
    monkeypatch.setattr(
        "ditlab.encoders.text.batch_slices", lambda num, device, at_once: [slice(0, num)]
    )
    padded = encoder.encode(TEXTS)
    assert torch.equal(padded["text_mask"], one_by_one["text_mask"])
    for name in ("text", "text_pooled"):
        assert torch.allclose(padded[name], one_by_one[name], atol=1e-5)


def test_captions_that_are_cut_are_counted(text_folder, encoder):
    short = FrozenTextEncoder(str(text_folder), 32, 3)
    made = short.encode(TEXTS)
    assert (
        made["text"].shape[1] == 3
        and short.num_truncated == sum(n > 3 for n in encoder.num_tokens(TEXTS)) > 0
    )
    whole = encoder.encode(TEXTS[:1])["text"][0, :3]
    # nothing before a cut changes: the model looks back alone
    assert torch.allclose(made["text"][0], whole, atol=1e-5)
    assert encoder.num_truncated == 0


def test_a_text_without_tokens_has_one(encoder):
    made = encoder.encode([""])
    assert made["text_mask"].tolist() == [[True]] and made["text"].isfinite().all()


@pytest.mark.slow  # a compiler at work
def test_compiled(text_folder, encoder):
    compiled = FrozenTextEncoder(str(text_folder), 32, LENGTH, compile=True)
    assert torch.allclose(compiled.encode(TEXTS)["text"], encoder.encode(TEXTS)["text"], atol=1e-4)
