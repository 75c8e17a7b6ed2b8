"""`ditlab prove SPEC --against FILE`: the first step, quantity and place that a changed file departs
in.
"""

import re
from pathlib import Path

import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab_addons.check.eject.against import compare_file, compare_texts
from ditlab_addons.check.eject.ejecting import eject
from support.damage import refused
from support.trainings.family_specs import smallest

BATCH = {"batch__size": 8, "evaluation__samples": 2, "evaluation__limit": 6}
OUTPUT = "output of a module"
UPDATE = "master after the update"
CHANGES = [
    # old text, new text, step, quantity, a part of the name of the first place
    ('approximate="none"', 'approximate="tanh"', 1, OUTPUT, "blocks.0.mlp"),
    ("attn_mask=None", "scale=1.0", 1, OUTPUT, "blocks.0.attention"),
    ("return x + self.mlp", "return x - self.mlp", 1, OUTPUT, "blocks.0"),
    ('uniform("time", (num,))', 'uniform("time", (num,)) ** 2', 1, OUTPUT, "network.time"),
    ('uniform("label_dropout"', 'uniform("dropout"', 1, OUTPUT, "network.label"),
    ("return noise - data", "return data - noise", 1, "gradient", "network.head"),
    ("FLOOR = 1e-2", "FLOOR = 1e-1", 1, "gradient", "network.head"),
    ("+ np.float32(offset)", "- np.float32(offset)", 1, "samples", "image"),
    ("(total / num).backward()", "total.backward()", 1, "gradient", "network"),
    ("parts, 2, dtype", "parts, 1, dtype", 1, "norm of the gradient", "the whole"),
    ("CLIP_TINY = 1e-6", "CLIP_TINY = 1e-2", 1, "exp_avg after the update", "network"),
    ("weight_decay=group.rates.weight_decay", "weight_decay=0.0", 1, UPDATE, "network"),
    ("beta2=update.betas[1]", "beta2=0.9", 1, "exp_avg_sq after the update", "network"),
    ("(1 + step) / (10 + step)", "(2 + step) / (10 + step)", 1, "ema after the update", "network"),
    ("(step + 1) / warmup", "step / warmup", 1, "planned learning rate", "learning_rate"),
    ("progress = min(1.0,", "progress = min(0.5,", 15, "planned learning rate", "learning_rate"),
    ("ditlab.epoch/", "ditlab.epochs/", 1, "planned samples", "rows_of_step"),
    ('"ditlab.hold-out"', '"ditlab.held-out"', 0, "rows of the data", "train_rows"),
    ('SETTINGS.seed, "weights"', 'SETTINGS.seed, "weight"', 0, "weights of the start", "network"),
    ("group.count.fill_(count)", "group.count.fill_(0)", 11, UPDATE, "network"),
    ("self.step += 1", "self.step += 1 + (self.step == 6)", 8, "samples", "image"),
    ("fixed_noise(first, self.device)", "fixed_noise(0, self.device)", 20, "evaluation", ""),
    ("(t_next - t) * velocity(x, t)", "(t - t_next) * velocity(x, t)", 20, "samples drawn", ""),
]


EXPERIMENT = smallest("dit", training__steps=24, **BATCH)


@pytest.fixture(scope="module")
def ejected(tmp_path_factory):
    """The text of the smallest experiment's file."""
    home = Home(tmp_path_factory.mktemp("home"))
    return eject(EXPERIMENT, open_data(EXPERIMENT.data, home))


@pytest.mark.slow
def test_a_file_as_it_was_written_holds(home, tmp_path):
    own = Home(home)
    file = tmp_path / "train.py"
    file.write_text(eject(EXPERIMENT, open_data(EXPERIMENT.data, own)))
    found = compare_file(EXPERIMENT, own, file)
    assert (found.holds, found.changed, found.steps) == (True, (), 20)


def planted(ejected, old, new):
    assert old in ejected
    return compare_texts("dit", ejected, ejected.replace(old, new), Path("train.py"))


def assert_named(found, step, quantity, where):
    first = found.departures[0]
    assert (first.step, first.quantity) == (step, quantity), found
    assert where in first.where[0], found
    assert (
        f"{'step ' + str(step) if step else 'before the first step'}: {quantity}" in found.verdict
    )


def test_a_changed_layer_is_named_with_its_step(ejected):
    old, new, *expected = CHANGES[0]
    found = planted(ejected, old, new)
    assert found.changed == ("MLP.forward",)
    assert_named(found, *expected)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "step", "quantity", "where"), CHANGES)
def test_each_change_is_named_with_step_quantity_and_place(
    ejected, old, new, step, quantity, where
):
    assert_named(planted(ejected, old, new), step, quantity, where)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:\n", "is no Python (line 1"),
        ("import nowhere_to_be_found\n", "does not import (ModuleNotFoundError"),
        ("x = 1\n", "does not build (AttributeError"),
    ],
)
def test_a_file_that_does_not_run_is_one_sentence(ejected, text, words):
    with refused(re.escape(words)):
        compare_texts("dit", ejected, text, Path("train.py"))
