"""Prompts: positions of their tokens, and refusals with the option, its value and the remedy."""

import pytest

from ditlab_models.contract import Prompt, SampleRequest
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from support.damage import refused
from support.models.letters import letters

MODEL = DLMSpec(length=12, vocabulary=11)
LETTERS = letters()


def conditions(*prompts, num=1, text=LETTERS, **sampling):
    sampler = FAMILY.build_sampler(DLMSamplingSpec(**sampling), MODEL, DLMObjectiveSpec(), text)
    return sampler.conditions(num, SampleRequest(prompts=[Prompt(*prompt) for prompt in prompts]))


def test_without_prompts_there_are_no_conditions():
    assert conditions(num=3) == {} and conditions(num=3, text=None) == {}


def test_prompts_are_placed_at_their_positions():
    found = conditions(("abc", 2), ("k", -1), ("b",), num=2)
    assert found["given"].int().tolist() == [[1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]] * 2
    assert found["tokens"][found["given"]].tolist() == [1, 0, 1, 2, 10] * 2


def test_prompts_may_touch_and_fill_a_sample():
    assert conditions(("abcd", 4), ("abcd",), ("abcd", -4))["given"].all()
    assert conditions(("abcdef",), length=6)["given"].shape == (1, 6)


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        ([("",)], {}, "prompt='' holds no token; give it text, or leave it out."),
        ([("...", 3)], {}, "prompt='...' holds no token; give it text, or leave it out."),
        (
            [("a" * 13,)],
            {},
            "prompt='aaaaaaaaaaaaa' has 13 tokens, more than a sample (model.length=12); shorten it to 12.",
        ),
        (
            [("a" * 9,)],
            {"length": 8},
            "prompt='aaaaaaaaa' has 9 tokens, more than a sample (sampling.length=8); shorten it to 8.",
        ),
        (
            [("abcd", 9)],
            {},
            "prompt='abcd' has 4 tokens, and from position=9 a sample has 3 left (model.length=12); set its position to 8 (or -4, from the end), or shorten it.",
        ),
        (
            [("abcd", -3)],
            {},
            "prompt='abcd' has 4 tokens, and from position=-3 a sample has 3 left (model.length=12); set its position to 8 (or -4, from the end), or shorten it.",
        ),
        (
            [("a", 12)],
            {},
            "position=12 of prompt='a' lies outside a sample (model.length=12); set it to a number from -12 to 11.",
        ),
        (
            [("a", -9)],
            {"length": 8},
            "position=-9 of prompt='a' lies outside a sample (sampling.length=8); set it to a number from -8 to 7.",
        ),
        (
            [("abc", 5), ("ab", 4)],
            {},
            "prompt='ab' (tokens 4 to 5) and prompt='abc' (tokens 5 to 7) overlap; set the position of the second to 6 or more.",
        ),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompts, sampling, message):
    with pytest.raises(ValueError) as caught:
        conditions(*prompts, **sampling)
    assert str(caught.value) == message


def test_a_long_prompt_is_named_by_its_beginning():
    with refused(r"^prompt='(a b c d ){4}a b c\.\.\.' has 40 tokens", ValueError):
        conditions(("a b c d " * 10,))


def test_a_prompt_needs_a_tokeniser():
    message = r"^prompt='abc' cannot be read, as no tokeniser came with the data \(tokenizer\.json\); import the data"
    with refused(message, ValueError):
        conditions(("abc",), text=None)
