"""Coloured digits: images, captions and classes say the same thing, and a digit is held out with
all its colours.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from ditlab.data.builtin import COLOURS, DIGITS
from ditlab.data.images.captions import decode_captions
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.spec.data import CaptionedDigitsData


@pytest.fixture(scope="module")
def splits(module_home):
    return open_data(CaptionedDigitsData(), module_home)


@pytest.fixture(scope="module")
def store(splits):
    return splits.train.store


def test_every_digit_is_there_in_every_colour_with_a_matching_caption(store):
    assert len(store) == 1797 * 7
    assert store.columns["image"].shape == (3, 16, 16)
    assert store.columns["caption"].shape == (len("a magenta three"),)
    digits, colours = (store.tensor(name).numpy() for name in ("digit", "colour"))
    assert np.array_equal(digits, load_digits().target.repeat(7))
    assert np.array_equal(colours, np.tile(np.arange(7), 1797))
    names = store.columns["colour"].names
    assert names == tuple(COLOURS) and store.columns["digit"].names == DIGITS
    captions = [f"a {names[colour]} {digit}" for digit in DIGITS for colour in range(7)]
    found = decode_captions(store.tensor("caption").numpy())
    assert found == [captions[place] for place in 7 * digits + colours]


def test_the_ink_has_the_colour_and_the_shape_of_the_digit(store):
    images = store.tensor("image").numpy().astype(float).reshape(1797, 7, 3, 16, 16)
    white = images[:, -1, 0]
    for number, ink in enumerate(COLOURS.values()):
        assert np.array_equal(images[:, number], white[:, None] * np.array(ink)[:, None, None])
    shrunk = white.reshape(1797, 8, 2, 8, 2).mean(axis=(2, 4)) / 255
    assert np.corrcoef(shrunk.reshape(-1), load_digits().images.reshape(-1))[0, 1] > 0.98
    assert (white.max(axis=(1, 2)) > 200).all()


def test_a_digit_is_held_out_with_all_its_colours(splits):
    train, held_out = splits.train.rows, splits.held_out.rows
    assert len(train) + len(held_out) == 1797 * 7 and len(held_out) == 180 * 7
    assert set(train // 7).isdisjoint(held_out // 7)
    assert len(set(held_out[:60] // 7)) > 30  # the first few are of many digits


def test_parameters_name_the_store_and_the_same_parameters_give_the_same(
    module_home, splits, tmp_path
):
    other = open_data(CaptionedDigitsData(size=8, colours=2), module_home).train.store
    assert other.path.name == "captioned-digits-8-2" and len(other) == 1797 * 2
    assert other.columns["image"].shape == (3, 8, 8)
    assert open_data(CaptionedDigitsData(), Home(tmp_path)).fingerprint == splits.fingerprint


def test_a_size_that_is_no_multiple_of_8_is_refused():
    with pytest.raises(ValueError, match="multiple of 8"):
        CaptionedDigitsData(size=12)
