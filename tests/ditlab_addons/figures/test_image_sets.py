"""Sets of images outside of runs: a folder is read as its import is."""

import pytest
import torch
from PIL import Image

from ditlab.data.importing import ImportRequest, run_import
from ditlab.home import Home
from ditlab.spec.importing import ImagesOptions
from ditlab_addons.figures.images.image_sets import measure_images
from ditlab_addons.figures.images.published import features_named
from support.damage import refused
from support.datasets.figure_images import asked
from support.datasets.odd_sources import red_and_green_exchanged
from support.datasets.photographs import encoded, smooth

pytest.importorskip("transformers")


@pytest.fixture
def network(dinov2):
    return features_named(asked("dinov2", dinov2))


@pytest.fixture
def folder(tmp_path):
    """Pictures below class folders: upright and turned by EXIF, sRGB and Display P3, in several
    formats, one of two frames.
    """
    turned = Image.Exif()
    turned[0x0112] = 6
    for number in range(120):
        image = smooth(16, 16, number)
        options = {}
        if number % 2:
            image = image.transpose(Image.Transpose.ROTATE_90)
            options["exif"] = turned
        if number % 4 > 1:
            options["icc_profile"] = red_and_green_exchanged()
        if number == 0:
            options |= {"save_all": True, "append_images": [smooth(16, 16, 99)]}
        kind = "TIFF" if number % 3 else "PNG"
        place = tmp_path / "pets" / "ab"[number % 2] / f"{number}.{kind.lower()}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(encoded(image, kind, **options))
    (tmp_path / "pets" / "x.gif").write_bytes(b"")
    return tmp_path / "pets"


def test_a_folder_against_its_own_import_is_no_distance(tmp_path, folder, network):
    home = Home(tmp_path / "home")
    options = ImagesOptions(
        source=str(folder),
        resolution=16,
        patch=4,
        sizes="square",
        name="pets-16",
        processes=1,
        caption_from="none",
    )
    run_import("images", ImportRequest(home.stores, home.caches, options))
    found = measure_images(str(folder), network, "pets-16", home, torch.device("cpu"))
    assert found.num == 120
    assert abs(found.figures["fd_dinov2"].value) < 1e-4
    text = " ".join(found.notes)
    assert "121 files found: 120 images; 1 dropped: 1 not read (.gif)" in text
    assert "60 images of other colour profiles converted to sRGB" in text
    assert "1 images of several frames cut to their first" in text


def test_a_picture_that_cannot_be_read_is_named(tmp_path, folder, network):
    (folder / "a" / "broken.png").write_bytes(b"no picture")
    with refused(r"pets/a/broken\.png cannot be read \(.*; remove it\.$"):
        measure_images(str(folder), network, None, Home(tmp_path), torch.device("cpu"))
