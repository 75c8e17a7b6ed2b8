"""Peaks parsed from their names."""

from ditlab_addons.genome.get_zarr import parse_peaks, peak_name
from support.damage import refused


def test_chromosomes_may_have_colons_in_their_names():
    peaks, chromosomes = parse_peaks([["HLA-A*01:01:5-9", "HLA-A*01:01:7-12"], ["chrM:1-2"]], "x")
    assert chromosomes == ("HLA-A*01:01", "chrM")
    assert (peaks["start"].tolist(), peaks["end"].tolist()) == ([5, 7, 1], [9, 12, 2])
    assert peak_name(chromosomes, peaks[2]) == "chrM:1-2"


def test_peaks_that_are_no_text_are_refused():
    with refused("x holds values that are no text"):
        parse_peaks([[3, 4]], "x")
