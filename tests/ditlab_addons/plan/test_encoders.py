"""Frozen encoders in a plan: counted from their configurations, as the opened networks are."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.inputs.meta_step import DataShape
from ditlab_addons.plan.frozen_encoders import EncoderWork, encoder_work
from ditlab_addons.plan.hardware import find_gpu
from ditlab_addons.plan.plan import Planner
from ditlab_addons.plan.step_time import assumed_rates
from ditlab_addons.plan.worker_memory import ZeroSetting
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder
from support.trainings.family_specs import smallest

COLUMNS = frozenset({"image", "caption"})


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    """A network of pictures with a tiny encoder of captions and one of images."""
    folder = tmp_path_factory.mktemp("encoders")
    encoders = {
        "text": str(write_text_encoder(folder / "text")),
        "image": str(write_image_encoder(folder / "image", patch=8)),
        "precision": "fp32",
        "cache": 10,
    }
    return smallest(
        "pixelhdm",
        data={"kind": "arrow", "path": "pictures"},
        encoders=encoders,
        batch={"size": 8, "micro": 4},
        model__text_encoder="frozen",
        model__text_length=8,
        objective={"alignment_width": 24, "alignment_block": 1, "weights": {"alignment": 0.5}},
        sampling={"steps": 1, "height": 32, "width": 32},
    )


def test_encoders_count_as_the_opened_networks_do(painter, tmp_path):
    shape = DataShape({"image": (3, 32, 32)}, COLUMNS)
    found = encoder_work(painter, shape, tmp_path)
    text = FrozenTextEncoder(painter.encoders.text, 32, 8).network
    image = FrozenImageEncoder(painter.encoders.image, 24, 8).network
    opened = [*text.parameters(), *text.buffers(), *image.parameters(), *image.buffers()]
    assert found.weights == sum(each.nbytes for each in opened)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        text(input_ids=torch.ones(1, 8, dtype=torch.int64), use_cache=False)
        image(pixel_values=torch.zeros(1, 3, 32, 32))
    tokens = 1 + 4 + (32 // 8) ** 2
    # of both layers, which torch does not count on a CPU
    attention = 2 * 4 * (8**2 * 32 + tokens**2 * 24)
    assert found.flops == counter.get_total_flops() + attention
    assert found.pass_bytes > 0 and found.host == 10 * 4 * (8 * 32 + tokens * 24)
    assert not found.left_out


def test_encoders_of_which_nothing_is_known_are_named(painter, tmp_path):
    def work(columns, experiment=painter):
        shape = DataShape({"image": (3, 32, 32)}, columns)
        return encoder_work(experiment, shape, tmp_path)

    unknown = work(None)
    assert unknown.weights == 0 and len(unknown.left_out) == 2
    assert "data, which are not here" in unknown.left_out[0]
    stored = {"text", "text_mask", "text_pooled", "image_features"}
    assert work(COLUMNS | stored) == EncoderWork()
    partly = work(COLUMNS, painter.replace("encoders.text", str(tmp_path / "nowhere")))
    assert partly.weights > 0
    assert partly.left_out == (f"encoders.text={tmp_path}/nowhere, which is not on this machine",)


def test_a_worker_has_their_weights_and_a_step_their_operations(painter):
    experiment = painter.replace("resources.gpus_per_worker", 1)
    device = find_gpu("L4")
    rates = assumed_rates(device, "fp32")
    work = EncoderWork(weights=10**9, pass_bytes=10**7, flops=10**15, host=1000)
    shape = DataShape({"image": (3, 32, 32)}, COLUMNS)
    without, with_them = (
        Planner(experiment, shape, device, rates, each).setting(ZeroSetting(1), False, 4)
        for each in (EncoderWork(), work)
    )
    peak, before = with_them.memory.peak, without.memory.peak
    assert peak.encoders == 10**9 and peak.total >= before.total + 10**9
    assert with_them.memory.passes.total >= 10**9 + 4 * 10**7
    assert with_them.memory.host == without.memory.host + 1000
    added = with_them.seconds.passes - work.flops * 8 / rates.flops
    assert 0 <= added <= without.seconds.passes
    assert replace(with_them.seconds, passes=0) == replace(without.seconds, passes=0)
