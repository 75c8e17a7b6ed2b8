"""PixelHDM's published setting, whole: one optimiser step through the platform at 256x256, with
features stored beforehand and with both encoders, at their own full size, in the step."""

from pathlib import Path

import pytest

from support.datasets.photographs import captioned_folder, smooth
from support.datasets.tiny_encoders import (
    DINOV3_VIT_B16,
    QWEN3_0_6B,
    write_image_encoder,
    write_text_encoder,
)

SPEC = Path(__file__).parents[3] / "experiments/pixelhdm/base.yaml"
ONE_STEP = (
    "data.hold_out=0.25",
    "batch={size: 1, micro: 1}",
    "training={epochs: null, steps: 1}",
    "evaluation={every: null, samples: 0}",
    # in the background a second copy of weights, moments and average would wait in memory: 6 GB
    # beside the step's 11
    "checkpoint={every: null, write: blocking}",
)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Path]:
    """Checkpoints with random weights, in bf16: 1.1 GB."""
    folder = tmp_path_factory.mktemp("encoders")
    return {
        "text": write_text_encoder(folder / "text", **QWEN3_0_6B),
        "image": write_image_encoder(folder / "image", **DINOV3_VIT_B16),
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("features", ["stored", "made in the step"])
def test_one_step_at_256_pixels(ditlab, tmp_path, encoders, features):
    captions = (
        "a slope",
        "a slope of many colours from one corner to the other",
        "ein Hang",
        "red to green",
    )
    photographs = {f"{n}.png": (smooth(300, 280, n), caption) for n, caption in enumerate(captions)}
    source = captioned_folder(tmp_path / "photographs", photographs)
    words = ["--source", source, "--resolution", "256", "--name", "images", "--processes", "1"]
    ditlab("data", "import", "images", *words, "--json").ok()
    store = "images"
    if features == "stored":
        store = "features"
        options = ("--encode-text", encoders["text"], "--encode-images", encoders["image"])
        ditlab("data", "encode", "images", *options, "--name", store, "--json").ok()
    named = {"text": "null", "image": "null"} if features == "stored" else encoders
    changes = [
        *ONE_STEP,
        f"data.path={store}",
        *(f"encoders.{kind}={place}" for kind, place in named.items()),
    ]
    said = ditlab(
        "train", SPEC, *(part for change in changes for part in ("--set", change)), "--json"
    ).ok()
    assert said.json["status"] == "finished" and said.json["step"] == 1
    metrics = said.json["metrics"]
    # images of variance well below that of the noise, 1, and an output that is not yet 0
    assert 0.5 < metrics["train/velocity"] < 5 and 0 < metrics["train/frequency"] < 5
    # no patch's features are those of an untrained head but by chance
    assert metrics["train/alignment"] == pytest.approx(1, abs=0.2)
