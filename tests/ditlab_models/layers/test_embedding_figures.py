"""Figures of embeddings show their properties."""

import numpy as np

from ditlab_models.figure_kinds.embeddings import embedding_figures


def test_kinds():
    assert list(embedding_figures()) == ["embedding_table", "embedding_growth", "embedding_bases"]


def test_animation_grows_from_100_to_500_positions_and_keeps_its_rows():
    frames = embedding_figures()["embedding_growth"].frames
    tables = [frame.panels[0].values for frame in frames]
    lengths = [int(np.isfinite(values[:, 0]).sum()) for values in tables]
    assert (lengths[0], lengths[-1]) == (100, 500)
    assert lengths == sorted(set(lengths))
    for values, length in zip(tables, lengths, strict=True):
        assert np.array_equal(values[:length], tables[-1][:length])


def test_bases_name_their_longest_wavelengths():
    panels = embedding_figures()["embedding_bases"].panels
    assert "base 10000: longest wavelength 19,869" in panels[0].title
    assert "base 100: longest wavelength 353" in panels[1].title
