"""A file with several sets of tensors: the average is taken before the network's own, and the
others are named.
"""

import re

import pytest
import torch

from ditlab.weights.tensor_sets import UnreadableSets, take_tensors

OPTION = "model.init.weights"
OWN = {"a.w": torch.zeros(3, 4), "a.b": torch.zeros(3), "rope.inv_freq": torch.zeros(2)}
AVERAGE = {name: each + 1 for name, each in OWN.items()}
LEARNT = {name: each for name, each in AVERAGE.items() if name != "rope.inv_freq"}
LIST = list(LEARNT.values())


def under(prefix, tensors, dots=True):
    return {
        f"{prefix}.{name if dots else name.replace('.', '')}": tensors[name] for name in tensors
    }


def taken(content, wanted="auto"):
    tensors, choices = take_tensors(content, wanted, OPTION)
    assert tensors.keys() == OWN.keys()
    values = {float(each.mean()) for name, each in tensors.items() if name != "rope.inv_freq"}
    [value] = values
    return value, "; ".join(map(str, choices))


@pytest.mark.parametrize(
    ("content", "value", "said"),
    [
        ({"model": OWN, "model_ema": AVERAGE}, 1, "its `model_ema`, not its `model`"),
        ({"model": OWN, "ema_state_dict": AVERAGE}, 1, "its `ema_state_dict`, not its `model`"),
        ({"params": OWN, "params_ema": AVERAGE}, 1, "its `params_ema`, not its `params`"),
        ({"model": OWN, "ema_model": AVERAGE}, 1, "its `ema_model`, not its `model`"),
        ({"module": OWN, "ema": {"module": AVERAGE}}, 1, "its `ema.module`, not its `module`"),
        (
            {"model": OWN, "ema": {"shadow_params": LIST, "decay": 0.9}},
            1,
            "its `ema.shadow_params`, not its `model` (with names and 1 buffer of its `model`)",
        ),
        (
            {"model": OWN, "ema": {"shadow_params": LIST[:1]}},
            0,
            "its `model`, not its `ema.shadow_params`, which has tensors without names (1) that fit no other set",
        ),
        ({"model": OWN, "ema": LEARNT}, 1, "not its `model` (with 1 buffer of its `model`)"),
        (
            {
                "state_dict": under("model", OWN)
                | under("model_ema", LEARNT, dots=False)
                | {"model_ema.decay": torch.tensor(0.9)}
            },
            1,
            "its `state_dict.model_ema`, not its `state_dict` (with names and 1 buffer of its `state_dict`)",
        ),
        (
            under("online_model", OWN) | under("ema_model", AVERAGE) | {"step": torch.tensor(3)},
            1,
            "its `ema_model`, not its other tensors",
        ),
        (under("ema_model", AVERAGE), 1, "names without `ema_model.`"),
        ({"step": torch.tensor(4), "model": OWN}, 0, "its `model`"),
        ({"model": OWN, "ema": None, "optimizer": {"state": {0: AVERAGE}}}, 0, "its `model`"),
        ({"state_dict": OWN, "model": AVERAGE}, 0, "its `state_dict`, not its `model`"),
    ],
)
def test_the_average_is_taken_and_the_rest_is_named(content, value, said):
    found, sentence = taken(content)
    assert found == value
    assert said in sentence and (OPTION in sentence) == (", not " in sentence)


@pytest.mark.parametrize("wanted", ["ema_0.99", "ema_0.999", "model"])
def test_a_set_is_chosen_by_its_name(wanted):
    sets = {"model": OWN, "ema_0.99": AVERAGE, "ema_0.999": AVERAGE}
    value, said = taken(sets, wanted)
    assert value == (wanted != "model") and said.startswith(f"its `{wanted}`, not its `")


def test_a_layer_that_is_called_an_average_is_a_layer():
    content = {"avg_pool.w": torch.zeros(3), "a.w": torch.zeros(3)}
    assert take_tensors(content) == (content, [])


def holding_itself():
    content = {"model": OWN}
    return content | {"more": content.setdefault("self", content)}


def nested(levels):
    content = OWN
    for _ in range(levels):
        content = {"more": content}
    return content


@pytest.mark.parametrize(
    ("content", "wanted", "said"),
    [
        (
            {"ema_1": AVERAGE, "ema_2": AVERAGE},
            "auto",
            "holds 2 averages (ema_1, ema_2), and nothing says which is meant; choose one by model.init.weights=NAME",
        ),
        ({"G": OWN, "D": OWN}, "auto", "holds 2 sets of tensors (G, D), and nothing says"),
        ({"model": OWN}, "ema", "has no set of tensors 'ema' (model.init.weights), but model;"),
        (holding_itself(), "auto", "holds a mapping that holds itself"),
        (nested(20), "auto", "holds more than 8 levels of mappings"),
        ({"optimizer": {"state": OWN}}, "auto", "holds no tensors by name"),
    ],
)
def test_what_nothing_says_is_asked(content, wanted, said):
    with pytest.raises(UnreadableSets, match=re.escape(said)):
        take_tensors(content, wanted, OPTION)
