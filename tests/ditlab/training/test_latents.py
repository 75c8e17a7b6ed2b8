"""Training on latents: keyed draws of a stored posterior, samples decoded by the same
autoencoder.
"""

import numpy as np
import pytest
import torch

import ditlab
from ditlab.api.imports import import_data
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, Source
from ditlab.encoders.checkpoint import encoder_difference, folder_digests
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.meta_step import DataShape
from ditlab.inputs.model_inputs import ModelInputs, check_inputs
from ditlab.inputs.noise import KeyedNoise, fixed_noise
from ditlab.quality.sample_quality import QualityEvaluator
from ditlab.spec.encoders import Encoders
from ditlab.spec.importing import ImagesOptions
from ditlab_addons.encode.encoding import encode_store
from ditlab_addons.plan.frozen_encoders import EncoderWork, encoder_work
from support import small_run
from support.datasets.photographs import captioned_folder, smooth
from support.datasets.tiny_encoders import write_autoencoder
from support.datasets.writing import StoreWriter
from support.trainings.workers import TINY, newest, resumed_exactly, tiny

diffusers = pytest.importorskip("diffusers")
home = small_run.home

CPU = torch.device("cpu")
DIT = {**TINY["model"], "channels": 4, "depth": 1, "num_classes": 3}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """An autoencoder, and a store of images with its latents, whose images alone are beside it."""
    folder = tmp_path_factory.mktemp("latents")
    autoencoder = write_autoencoder(folder / "vae", scaling_factor=0.7, shift_factor=0.2)
    columns = {
        "image": Column(dtype="uint8", shape=(3, 16, 16), value_range=(0, 255)),
        "label": Column(dtype="int64", num_classes=3),
    }
    random = np.random.default_rng(0)
    values = {
        "image": random.integers(0, 256, (300, 3, 16, 16), np.uint8),
        "label": random.integers(0, 3, 300),
    }
    with StoreWriter(folder / "set", columns, name="set", source=Source(kind="test")) as writer:
        writer.append(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(folder / "home"))
        store = encode_store(folder / "set", autoencoder=str(autoencoder)).store
    return {"vae": str(autoencoder), "pixels": str(folder / "set"), "latents": str(store.path)}


def experiment(places, store="latents", **changes):
    changes = {"model": DIT, **changes}
    return tiny(
        data={"kind": "arrow", "path": places[store], "hold_out": 0.2},
        encoders__autoencoder=places["vae"],
        training__steps=4,
        batch__size=8,
        batch__micro=4,
        checkpoint={"every": 2},
        evaluation__every=4,
        evaluation__samples=3,
        evaluation__limit=6,
        sampling__steps=2,
        **changes,
    )


def test_a_step_draws_scaled_latents_by_its_key(places, home):
    spec = experiment(places)
    view = open_data(spec.data, Home(home)).train
    inputs = ModelInputs.from_experiment(spec, view.columns, CPU)
    raw = {field.name: view.gather(field.name, np.arange(4)) for field in inputs.fields}
    assert set(raw) == {"latents", "label"}  # no pixel is read

    def draw(noise, first=0):
        rows = {name: values[first:] for name, values in raw.items()}
        return inputs.prepare_batch(rows, view.columns, noise=noise)["image"]

    noise = KeyedNoise(0, "train", 3, 1, 4, CPU)
    z = draw(noise)
    mean, log_variance = raw["latents"].double().chunk(2, dim=1)
    eps = noise.normal("latents", mean.shape).double()
    expected = (mean + (log_variance / 2).exp() * eps - 0.2) * 0.7
    assert z.dtype == torch.float32 and torch.allclose(z.double(), expected, atol=1e-6)
    assert torch.equal(draw(noise), z)
    assert not torch.equal(draw(KeyedNoise(0, "train", 4, 1, 4, CPU)), z)
    assert torch.equal(draw(KeyedNoise(0, "train", 3, 1, 4, CPU, start=2), 2), z[2:])
    held_out = draw(fixed_noise(0, CPU))
    assert torch.equal(draw(fixed_noise(2, CPU), 2), held_out[2:])


@pytest.mark.parametrize("process", ["flow", "gaussian"])
def test_a_stopped_run_on_latents_goes_on_to_the_same_bits(places, home, tmp_path, process):
    changes = {}
    if process == "gaussian":
        changes = {
            "model": {**DIT, "variance_channels": "predicted"},
            "objective": {"process": "gaussian"},
        }
    recorder = resumed_exactly(experiment(places, **changes), home, tmp_path, 2)
    assert recorder.pictures == [0, 4] and np.isfinite(recorder.values[4]["train/loss"])
    # the autoencoder is no part of it
    assert not any("decoder" in name for name in newest(tmp_path / "whole").manifest.shapes)


def test_samples_are_pictures_that_the_autoencoder_decodes(places, home):
    unet = {"family": "unet", "image_size": 8, "channels": 4, "width": 8, "time_width": 8}
    spec = experiment(places, model=unet).replace("name", "latent")
    run = ditlab.open_run(ditlab.train(spec, local=True, warn=print).run_id)
    drawn = run.sample(3, seed=5, trajectory=True)
    assert drawn.values.shape == (3, 3, 16, 16) and drawn.trajectory.shape == (3, 3, 3, 16, 16)
    assert torch.equal(drawn.trajectory[-1], drawn.values)
    assert [image.size for image in drawn.images] == [(16, 16)] * 3
    network = diffusers.AutoencoderKL.from_pretrained(places["vae"])
    z = torch.randn(3, 4, 8, 8)
    begun = run.sample(noise=z, trajectory=True).trajectory[0]
    with torch.no_grad():
        expected = [network.decode(each[None] / 0.7 + 0.2).sample for each in z]
    assert torch.equal(begun, torch.cat(expected))
    assert run.figures().draw("samples").image.size
    assert "held_out/velocity" in run.evaluate().metrics


def test_quality_compares_decoded_samples_with_the_images(places, home):
    spec = experiment(places)
    quality = QualityEvaluator(spec, open_data(spec.data, Home(home)), Home(home), CPU)
    assert quality.basis.image.shape == (3, 16, 16)
    network = spec.family.build_network(spec.model)
    assert quality.draw(network, 3, 2).images.shape == (3, 3, 16, 16)


def test_a_plan_counts_the_autoencoder_where_samples_are_drawn(places, tmp_path):
    spec, shape = experiment(places), DataShape(columns=frozenset({"image", "label", "latents"}))
    found = encoder_work(spec, shape, tmp_path)
    network = diffusers.AutoencoderKL.from_pretrained(places["vae"])
    assert found.weights == 4 * sum(each.numel() for each in network.parameters())
    assert found.decoding_bytes >= 4 * 8 * 16 * 16  # features of the widest resolution
    assert encoder_work(spec.replace("evaluation.every", None), shape, tmp_path) == EncoderWork()


def test_square_images_of_an_import_are_trained_on_and_those_of_several_sizes_refused(
    places, home, tmp_path
):
    files = {f"{n}.png": (smooth(*size, n), "a") for n, size in enumerate([(16, 16), (12, 20)])}
    common = {"source": captioned_folder(tmp_path / "images", files), "resolution": 16, "patch": 4}
    specs = []
    for name, sizes in (("square", {"sizes": "square"}), ("several", {"step": 4})):
        import_data("images", ImagesOptions(name=name, processes=1, **common, **sizes))
        store = encode_store(name, autoencoder=places["vae"]).store.path
        model = {**DIT, "num_classes": None}
        specs.append(experiment({**places, "latents": str(store)}, model=model))
    check_inputs(specs[0], open_data(specs[0].data, Home(home)), Home(home))
    sentence = "of 4 channels and several sizes, but the model takes 4 and 8 x 8; import the images"
    assert sentence in refusal(specs[1], home)


def refusal(spec, home):
    with pytest.raises(UserError) as caught:
        check_inputs(spec, open_data(spec.data, Home(home)), Home(home))
    return str(caught.value)


def test_data_that_do_not_fit_are_refused_in_a_sentence_with_the_command(places, home, tmp_path):
    vae = places["vae"]
    other = str(write_autoencoder(tmp_path / "other", seed=1))
    for spec, *sentences in (
        (
            experiment(places, "pixels"),
            f"holds no latents for encoders.autoencoder={vae}; run `ditlab data encode STORE "
            f"--autoencoder {vae}` and set data.path",
        ),
        (
            experiment({**places, "vae": other}),
            f"holds latents of {vae} (sha256 ",
            f"encode STORE --autoencoder {other}`",
        ),
        (
            experiment(places, model={**DIT, "image_size": 16}),
            "holds latents of 4 channels and 8 x 8, but the model takes 4 and 16 x 16; set "
            "model.channels to 4",
        ),
    ):
        found = refusal(spec, home)
        assert all(sentence in found for sentence in sentences), found
    changed = encoder_difference(
        Encoders(autoencoder=other), folder_digests(experiment(places).encoders)
    )
    # as `ditlab sample` compares
    assert changed.startswith(f"encoders.autoencoder={other} holds an encoder of digest")
    theirs = encode_store(places["pixels"], autoencoder=other, name="theirs").store
    parts = {
        "a": {"kind": "arrow", "path": places["latents"]},
        "b": {"kind": "arrow", "path": str(theirs.path)},
    }
    both = experiment(places).replace(
        "data", {"kind": "mixture", "parts": parts, "weights": {"a": 1.0, "b": 1.0}}
    )
    assert "data.parts.b holds latents of the autoencoder " in refusal(both, home)
