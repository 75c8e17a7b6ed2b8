"""Samples as text, and the frames of the first one."""

import dataclasses

import pytest

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.sampling import EXCERPT
from ditlab_models.dlm.spec import BlockSampling, DLMObjectiveSpec, DLMSamplingSpec
from ditlab_models.figures import Text
from support.models.draws import seeded
from support.models.letters import letters
from support.models.small_networks import small_dlm


def shown(network, text, **sampling):
    """The panels of two samples, and the samples."""
    sampler = FAMILY.build_sampler(
        DLMSamplingSpec(**{"steps": 3, **sampling}), network.spec, DLMObjectiveSpec(), text
    )
    samples = sampler.sample(network, {}, 2, seeded())
    figure = sampler.show(samples)
    assert all(isinstance(panel, Text) for panel in figure.panels)
    return figure.panels, samples, sampler


def test_samples_are_decoded_and_the_first_has_frames():
    text = letters()
    (samples_panel, frames_panel), samples, _ = shown(small_dlm(), text)
    assert samples_panel.title == "Samples"
    assert samples_panel.passages == [text.decode(tokens) for tokens in samples.values.tolist()]
    starts = [passage.split("] ")[0] + "]" for passage in frames_panel.passages]
    assert starts == ["[sigma 1]", "[sigma 0.1]", "[sigma 0.01]", "[sigma 0.001]", "[sigma 0]"]
    assert frames_panel.passages[-1] == f"[sigma 0] {samples_panel.passages[0]}"


def test_without_a_tokeniser_token_ids_are_shown():
    (samples_panel, _), samples, _ = shown(small_dlm(), None)
    assert samples_panel.passages[1] == " ".join(str(token) for token in samples.values[1].tolist())


def test_frames_of_blocks_leave_out_later_blocks():
    (_, frames_panel), samples, _ = shown(
        small_dlm(block_size=4), letters(), block=BlockSampling(), steps=1
    )
    lengths = [len(passage.split("] ")[1]) for passage in frames_panel.passages]
    assert lengths == [12, 4, 4, 8, 8, 12, 12] and len(samples.fields["frames"]) == 7


@pytest.mark.parametrize("block_size", [None, 640])
def test_long_frames_are_cut(block_size):
    """Long frames show their beginning, or in blocks their end."""
    block = None if block_size is None else BlockSampling()
    network = small_dlm(length=1280, block_size=block_size)
    (samples_panel, frames_panel), *_ = shown(network, letters(), block=block, steps=1)
    whole, last = samples_panel.passages[0], frames_panel.passages[-1]
    assert len(whole) == 1280 > EXCERPT
    assert last == (
        f"[sigma 0] {whole[:EXCERPT]} ..." if block is None else f"[sigma 0] ... {whole[-EXCERPT:]}"
    )


def test_samples_without_frames_are_shown_alone():
    _, samples, sampler = shown(small_dlm(), letters())
    assert len(sampler.show(dataclasses.replace(samples, fields={})).panels) == 1
