"""Figures on published networks: from an experiment's fields to metrics, reference statistics, .npz
files, refusals.
"""

import hashlib
import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writing import write_store
from ditlab.home import Home
from ditlab.quality import check_quality, quality_names
from ditlab.quality.eligibility import find_basis, quality_basis
from ditlab.quality.figures import ComparedSamples
from ditlab.quality.images import npz_of_images, to_bytes
from ditlab.quality.sample_quality import QualityReference
from ditlab.spec.engine import Evaluation
from ditlab_addons.figures.images import published as of_quality
from ditlab_addons.figures.images.published import PublishedFigures, features_named, read_npz
from support.damage import refused
from support.datasets.figure_images import asked, hash_of, images_of
from support.datasets.tiny_encoders import write_clip, write_dinov2
from support.trainings.family_specs import smallest

pytest.importorskip("transformers")

CPU = torch.device("cpu")
DINO = ["quality/fd_dinov2", "quality/mmd_dinov2"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("networks") / "clip")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """RGB images without classes."""
    folder = tmp_path_factory.mktemp("data") / "store"
    held = {"image": Column(dtype="uint8", shape=(3, 16, 16), value_range=(0, 255))}
    batch = {"image": to_bytes(images_of(400)).numpy()}
    write_store(folder, held, [batch], name="made", description="", source=Source(kind="made"))
    return {"kind": "arrow", "path": str(folder), "hold_out": 0.25}


def experiment(store, *features):
    sizes = {"model__channels": 3, "model__image_size": 16, "model__num_classes": None}
    evaluation = {"evaluation__quality": 100, "evaluation__features": list(features)}
    return smallest("dit", data=store, **sizes, **evaluation)


def reference(spec, home, **options):
    return QualityReference(quality_basis(spec, open_data(spec.data, home), home), home, **options)


def test_an_experiment_s_figures_have_their_intervals_and_are_kept_once(
    store, dinov2, tmp_path, monkeypatch
):
    """Worse images are further away; a second reference computes no feature of a real image; a
    damaged one does.
    """
    spec, home, warnings = experiment(store, asked("dinov2", dinov2)), Home(tmp_path), list[str]()
    data = open_data(spec.data, home)
    check_quality(spec, data)
    measured = reference(spec, home, warn=warnings.append)
    near, far = (measured.measure(images_of(100, 1, level)) for level in (1.0, 0.3))
    names = quality_names(spec, data)
    assert tuple(near) == names
    for name in DINO:
        assert near[f"{name}_low"] < near[name] < near[f"{name}_high"] and near[name] < far[name]
    assert warnings == [], "100 images are 5 for each of 8 features"
    (path,) = (home.caches / "features").glob("*.npz")
    passes = []
    gather = of_quality.Statistics.of
    monkeypatch.setattr(of_quality.Statistics, "of", lambda each: passes.append(1) or gather(each))
    assert reference(spec, home).measure(images_of(100, 1)) == near and not passes
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    assert reference(spec, home).measure(images_of(100, 1)) == near and len(passes) == 1


def test_few_images_are_warned_of_with_the_unbiased_figure_beside(
    store, tmp_path, dinov2, monkeypatch
):
    monkeypatch.setattr(of_quality, "UNBIASED_FROM", 50)
    spec, warnings = experiment(store, asked("dinov2", dinov2)), list[str]()
    measured = reference(spec, Home(tmp_path), warn=warnings.append)
    found = measured.measure(images_of(100, 1))
    measured.measure(images_of(100, 1))
    (said,) = warnings
    assert "of 100 images is biased upwards (fewer than 50 for each of 8 features)" in said
    assert f"quality/mmd_dinov2={found['quality/mmd_dinov2']:.4g} is unbiased" in said


def test_measurement_knows_network_and_reference(store, dinov2, tmp_path):
    other = write_dinov2(tmp_path / "other", layer_norm_eps=1e-3)
    given = tmp_path / "given.npz"
    given.write_bytes(npz_of_images(images_of(100, 2)))
    specs = [
        experiment(store),
        experiment(store, asked("dinov2", dinov2)),
        experiment(store, asked("dinov2", other)),  # the same weights under another configuration
        experiment(store, asked("dinov2", dinov2, reference=str(given))),
    ]
    bases = [
        quality_basis(each, open_data(each.data, Home(tmp_path)), Home(tmp_path))
        for each in specs[1:]
    ]
    assert len({basis.figures[0].digest() for basis in bases}) == 3
    assert len({spec.content_hash() for spec in specs}) == 1


def test_npz_of_statistics_and_images_come_back(dinov2, tmp_path, monkeypatch):
    """Statistics out and in: the same Frechet distance, which they alone allow; images, embedded
    once: all figures.
    """
    home, images = Home(tmp_path), images_of(120, 3)
    plain = PublishedFigures(features_named(asked("dinov2", dinov2)), home)
    features = torch.cat(list(plain.features([to_bytes(images)], CPU)))
    statistics = of_quality.Statistics.of([features[:50], features[50:]])
    assert torch.allclose(statistics.sigma, torch.cov(features.double().T))
    (tmp_path / "images.npz").write_bytes(npz_of_images(images))
    np.savez(tmp_path / "moments.npz", mu=statistics.mu.numpy(), sigma=statistics.sigma.numpy())
    generated = torch.cat(list(plain.features([to_bytes(images_of(100, 4))], CPU)))
    figures = {}
    for name in ("moments", "images"):
        spec = features_named(asked("dinov2", dinov2, reference=str(tmp_path / f"{name}.npz")))
        one = PublishedFigures(spec, home)
        figures[name] = one.compare(one.reference("", list, CPU), generated)
    moments, whole = figures["moments"], figures["images"]
    assert [*moments] == ["fd_dinov2"] and [*whole] == ["fd_dinov2", "mmd_dinov2"]
    assert moments["fd_dinov2"].value == pytest.approx(whole["fd_dinov2"].value, rel=1e-3)
    monkeypatch.setattr(PublishedFigures, "features", None)
    again = PublishedFigures(spec, home)
    assert again.compare(again.reference("", list, CPU), generated) == whole


def test_a_command_measures_images_and_writes_statistics(dinov2, tmp_path, cli):
    for name, seed in (("a", 5), ("b", 6)):
        (tmp_path / f"{name}.npz").write_bytes(npz_of_images(images_of(100, seed)))
    network = ["--kind", "dinov2", "--weights", dinov2, "--sha256", hash_of(dinov2)]
    a, b, out = (tmp_path / name for name in ("a.npz", "b.npz", "out.npz"))

    def run(*arguments):
        return cli("data", "statistics", *arguments, "--json")

    found = run(a, *network, "--against", b, "--out", out).ok()
    assert found.json["images"] == 100 and set(found.json["figures"]) == {"fd_dinov2", "mmd_dinov2"}
    again = run(b, *network, "--against", out)
    assert again.json["notes"] == [], "the file tells its network and its pictures' size"
    distance = found.json["figures"]["fd_dinov2"]["value"]
    assert again.json["figures"]["fd_dinov2"]["value"] == pytest.approx(distance, rel=1e-3)
    run(a, *network[:-1], "0" * 63).refused("--sha256")


@pytest.mark.slow
def test_training_and_evaluation_give_the_same_figures(store, dinov2, tmp_path, monkeypatch, cli):
    """And samples go out as ADM writes them."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    spec = tmp_path / "spec.yaml"
    job = experiment(store, asked("dinov2", dinov2)).replace_all(
        {
            "name": "small",
            "training.steps": 2,
            "schedule.warmup": 0,
            "evaluation.every": 2,
            "evaluation.samples": 0,
            "checkpoint.every": 2,
        }
    )
    spec.write_text(json.dumps(job.to_dict()))
    trained = cli("train", spec, "--local", "--json").ok()
    said = cli("evaluate", "small", "--quality", "100", "--json").ok()
    for name in (f"{name}{end}" for name in DINO for end in ("", "_low", "_high", "_df")):
        assert said.json["metrics"][name] == pytest.approx(trained.json["metrics"][name], rel=1e-3)
    out = tmp_path / "samples.npz"
    drawn = cli("sample", "small", "--num", "3", "--out", out, "--json").ok()
    assert drawn.json["files"] == [str(out)], drawn.err
    assert read_npz(out, "")["arr_0"].shape == (3, 16, 16, 3)


def test_clip_compares_images_and_their_captions(clip, tmp_path):
    figures = PublishedFigures(features_named(asked("clip", clip)), Home(tmp_path))
    real, generated = (images_of(100, seed) for seed in (7, 8))
    reference = of_quality.Statistics.of(figures.features([to_bytes(real)], CPU))
    assert torch.allclose(reference.features.norm(dim=1), torch.ones(100))
    assert figures.names(False) == (
        "quality/cmmd",
        "quality/cmmd_low",
        "quality/cmmd_high",
        "quality/cmmd_df",
    )
    captions = ["a red seven", "two white digits " * 9] * 50
    found = figures.measure(ComparedSamples([generated], lambda: [real], "", CPU, captions))
    assert tuple(found) == figures.names(True) and 0 <= found["quality/clip_score"] <= 2.5


def refusals(dinov2, clip, folder):
    np.savez(folder / "other.npz", mu=np.zeros(5), sigma=np.eye(5))
    np.savez(folder / "pickled.npz", mu=np.array([None]), sigma=np.eye(1))
    other, pickled, weights = (str(folder / name) for name in ("other.npz", "pickled.npz", "o.pth"))
    torch.save({"fc.weight": torch.zeros(3, 2)}, weights)
    digest = hashlib.sha256((folder / "o.pth").read_bytes()).hexdigest()
    of_dino = asked("dinov2", dinov2)
    return {
        "has the SHA-256 .* was asked for; fetch": of_dino | {"sha256": "0" * 64},
        "nowhere is not there; name a file or folder": of_dino | {"weights": "nowhere"},
        "a network of the kind clip, and the features of kind=dinov2 are of dinov2": asked(
            "dinov2", clip
        ),
        r"no Inception v3 of FID: .* \(\d+ differ\); name the file pt_inception": {
            "kind": "inception",
            "weights": weights,
            "sha256": digest,
        },
        "is of 5 features, and kind=dinov2": of_dino | {"reference": other},
        "cannot be read .* plain arrays": of_dino | {"reference": pickled},
        "holds no images .* kind=clip need": asked("clip", clip, reference=other),
    }


def test_what_cannot_be_measured_is_one_sentence(dinov2, clip, tmp_path):
    given = [images_of(100)]
    for problem, fields in refusals(dinov2, clip, tmp_path).items():
        figures = PublishedFigures(features_named(fields), Home(tmp_path))
        with refused(problem):
            figures.check()
            figures.measure(ComparedSamples(given, lambda: given, "", CPU))


def test_images_that_are_neither_grey_nor_rgb_cannot_be_measured(store, dinov2, tmp_path):
    home = Home(tmp_path)
    figures = [PublishedFigures(features_named(asked("dinov2", dinov2)), home)]
    found = find_basis(open_data(experiment(store).data, home), (2, 16, 16), figures=figures)
    assert found == "images of 2 channels are neither grey nor RGB, which evaluation.features needs"


def test_too_few_images_are_one_sentence(dinov2, tmp_path):
    figures = PublishedFigures(features_named(asked("dinov2", dinov2)), Home(tmp_path))
    given = [images_of(99)]
    with refused(r"quality/fd_dinov2 needs at least 100 generated images, and there are 99"):
        figures.measure(ComparedSamples(given, lambda: given, "", CPU))


def test_spec_refuses_downloads_and_a_kind_twice():
    one = {"kind": "clip", "weights": "a", "sha256": "0" * 64}
    with pytest.raises(ValidationError, match="nothing is fetched for figures"):
        Evaluation.model_validate({"features": [one | {"weights": "hf://a/b"}]})
    with pytest.raises(ValidationError, match="names clip 2 times; name each kind once"):
        Evaluation.model_validate({"features": [one, one]})
