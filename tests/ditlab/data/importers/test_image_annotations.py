"""Captions and classes of imported images: from names of folders, and from lines of JSON."""

import pytest

from support.damage import refused
from support.datasets.photographs import captioned_folder, smooth, tar_file


@pytest.fixture
def pets(tmp_path):
    """Class folders: two cats, a dog below a folder of its own, one dog that is no picture, a
    broken bird.
    """
    names = ("tabby_cat/2_b.png", "tabby_cat/1_a.png", "dog/old/x.png")
    source = captioned_folder(
        tmp_path / "pets", {name: (smooth(20, 24, seed), None) for seed, name in enumerate(names)}
    )
    captioned_folder(source, {"dog/text.png": (b"no picture", None), "bird/empty.png": (b"", None)})
    return source


def test_class_folders_become_classes_numbered_by_name(run, pets):
    store = run(pets, label_from="folder", grey=True)
    assert store.columns["label"].names == ("bird", "dog", "tabby_cat")
    assert store.columns["image"].shape == (1, 16, 16) and "caption" not in store.columns
    assert store.manifest.description == "3 images of 3 classes in 1 size"


def test_tars_of_class_folders_give_the_same(run, pets, tmp_path):
    expected = run(pets, label_from="folder").fingerprint
    files = sorted(file for file in pets.rglob("*") if file.is_file())
    for above in ("", "./"):
        members = {f"{above}{file.relative_to(pets)}": file.read_bytes() for file in files}
        tar = tar_file(tmp_path / "pets.tar", members)
        assert run(tar, label_from="folder").fingerprint == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_side": 8}, r"--min-side=8 is of --sizes aspect; leave it out"),
        (
            {"resolution": 30},
            r"--resolution=30 is no multiple of --patch=4; set --resolution to 28 or 32",
        ),
        ({"sizes": "aspect", "step": 30}, r"--step=30 is no multiple of --patch=4"),
    ],
)
def test_options_that_do_not_fit_each_other(run, pets, options, message):
    with pytest.raises(ValueError, match=message):
        run(pets, **options)


def test_small_images_name_the_options_that_help(run, tmp_path):
    source = captioned_folder(tmp_path / "tiny", {"a.png": (smooth(32, 40), "small")})
    with refused(r"1 too small.*; name other files, or give a smaller --resolution\.$"):
        run(source, sizes="aspect", resolution=256, patch=16)
    with refused(
        r"--resolution=32 leaves no size: .*, lower --patch or --step, or give --sizes square"
    ):
        run(source, sizes="aspect", resolution=32, patch=16)
    assert len(run(source, sizes="aspect", resolution=32, patch=4)) == 1
    assert len(run(source, resolution=32, patch=16)) == 1
