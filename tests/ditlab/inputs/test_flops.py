"""FLOPs of a step: closed forms, and sums over micro-batches."""

from dataclasses import replace
from pathlib import Path

import pytest

from ditlab.inputs.flops import step_flops
from ditlab.inputs.meta_step import DataShape
from ditlab.spec.files import load_experiment

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


def test_a_transformer_by_hand():
    """Each Linear of `tokens` rows takes 2 * tokens * inputs * outputs, attention 4 * T^2 * width
    an image.
    """
    experiment = load_experiment(EXPERIMENTS / "digits" / "dit.yaml", ["batch.size=8"])
    width, depth, images, tokens = 128, 4, 8, 16
    model = experiment.model
    hidden = round(width * model.mlp_ratio)
    rows = 2 * images * tokens
    patches = rows * (2 * 2) * width * 2  # embedding and head
    condition = model.condition_width
    times = 2 * images * (width * condition + condition * condition)
    block = rows * (4 * width * width + 2 * width * hidden) + 4 * images * tokens**2 * width
    block += 2 * 2 * images * condition * 2 * width  # modulations
    flops = step_flops(experiment)
    assert flops.forward == patches + times + depth * block
    # neither the image nor the sinusoid of time has a gradient
    unneeded = rows * 2 * 2 * width + 2 * images * width * condition
    assert flops.backward == 2 * flops.forward - unneeded
    assert flops.recomputed == 0 and flops.hardware == flops.model


@pytest.mark.parametrize(
    "path",
    [
        "digits/unet",
        "region/small",
        "dlm/small_block",
        pytest.param("pixelhdm/small", marks=pytest.mark.slow),
    ],
)
def test_micro_batches_and_checkpointing(path):
    shape = (
        DataShape({"image": (3, 16, 16), "caption": (15,)}) if "pixelhdm" in path else DataShape()
    )
    whole = load_experiment(EXPERIMENTS / f"{path}.yaml", ["batch.size=16", "batch.micro=8"])
    plain = step_flops(whole, shape)
    half = step_flops(
        load_experiment(EXPERIMENTS / f"{path}.yaml", ["batch.size=8", "batch.micro=8"]), shape
    )
    assert (plain.forward, plain.backward) == (2 * half.forward, 2 * half.backward)
    assert 1.85 * plain.forward < plain.backward <= 2 * plain.forward
    saved = step_flops(whole.replace("engine.activation_checkpointing", True), shape)
    assert 0.5 * plain.forward < saved.recomputed < plain.forward
    assert replace(saved, recomputed=0) == plain
    assert saved.hardware == plain.model + saved.recomputed


@pytest.mark.slow
def test_sizes_that_the_data_decide():
    """Images of four times the pixels take up to four times the work; their captions take what they
    took.
    """
    experiment = load_experiment(EXPERIMENTS / "pixelhdm" / "small.yaml", ["batch.size=2"])
    small, large = (
        step_flops(experiment, DataShape({"image": (3, side, side), "caption": (16,)})).model
        for side in (16, 32)
    )
    assert 2.5 * small < large < 4 * small


def test_the_language_models_output_layer_counts_all_of_its_products():
    """A vocabulary larger by V adds 6 V width operations a token: log scores, and gradients of both
    their factors.

    The last of them is added in place to what earlier chunks gave. The bias's gradient is a product
    with one row.
    """
    spec = EXPERIMENTS / "dlm" / "small.yaml"
    sizes = "model={family: dlm, length: 64, vocabulary: %d, width: 32, depth: 1, num_heads: 2}"
    small, large = (
        step_flops(
            load_experiment(spec, [sizes % vocabulary, "data.length=64", "batch={size: 2}"])
        ).model
        for vocabulary in (1000, 3000)
    )
    assert large - small == (6 * 32 + 2) * 2 * 64 * 2000
