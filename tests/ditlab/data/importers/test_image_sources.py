"""Sources of images: tables of several formats, patterns, URIs, and what is wrong with them."""

import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.errors import Unreachable, UserError
from support.damage import refused
from support.datasets.photographs import captioned_folder, encoded, parquet_file, smooth, tar_file
from support.object_store.s3 import s3_at_hand

PICTURES = {f"{n}.png": encoded(smooth(20, 20 + n, n)) for n in range(5)}
CAPTIONS = [f"slope {n}" for n in range(5)]


@pytest.fixture
def folder(tmp_path):
    return captioned_folder(
        tmp_path / "photos",
        {name: (PICTURES[name], caption) for name, caption in zip(PICTURES, CAPTIONS, strict=True)},
    )


@pytest.fixture
def expected(run, folder):
    return run(folder).fingerprint


def test_a_zip_gives_the_set_of_its_folder(run, folder, tmp_path, expected):
    (tmp_path / "tables").mkdir()
    images = pa.array(PICTURES.values(), pa.binary())
    parquet_file(tmp_path / "tables" / "t.parquet", image=images, caption=CAPTIONS)
    tables = [
        {"file_name": name, "caption": text} for name, text in zip(PICTURES, CAPTIONS, strict=True)
    ]
    for source in (folder, tmp_path / "tables"):
        packed = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", source))
        assert run(packed).fingerprint == expected
    for text in folder.glob("*.txt"):
        text.unlink()
    pq.write_table(pa.Table.from_pylist(tables), folder / "metadata.parquet")
    packed = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", folder))
    assert run(packed).fingerprint == expected
    with refused(r"packed\.zip is a zip behind a URI, which is not read; copy it here"):
        run(f"file://{packed}")


def test_patterns_choose_files(run, folder, tmp_path, expected):
    for number, name in enumerate(PICTURES):
        (tmp_path / "tars" / str(number)).mkdir(parents=True)
        members = {name: PICTURES[name], name.replace("png", "txt"): CAPTIONS[number].encode()}
        tar_file(tmp_path / "tars" / str(number) / f"train-{number}.tar", members)
        tar_file(tmp_path / "tars" / str(number) / f"test-{number}.tar", members)
    assert run(f"{tmp_path}/tars/**/train-*.tar").fingerprint == expected
    assert run(f"{tmp_path}/tars/*/train-[0-4].tar").fingerprint == expected
    assert len(run(f"{tmp_path}/tars/*/t*-1.tar")) == 2
    assert len(run(f"{folder}/[0-2].*")) == 3
    for pattern in ("tars/*.tar", "tars/*/valid-*.tar"):
        with refused(r"matches no file; correct the pattern, and quote it for the shell\.$"):
            run(f"{tmp_path}/{pattern}")


def test_folders_tars_and_tables_here_and_by_uri_give_the_same(run, folder, tmp_path, expected):
    members = {}
    for number, (name, image) in enumerate(PICTURES.items()):
        members |= {name: image, f"{number}.txt": CAPTIONS[number].encode()}
    tar = tar_file(tmp_path / "web.tar", members)
    images = pa.array(list(PICTURES.values()), pa.binary())
    table = parquet_file(tmp_path / "t.parquet", image=images, caption=CAPTIONS)
    for place in (folder, tar, table, f"{tmp_path}/*.tar", f"{tmp_path}/photos/*"):
        for source in (str(place), f"file://{place}"):
            assert run(source).fingerprint == expected
    assert run(f"file://{folder}/1.png", caption_from="none").manifest.source.note.startswith(
        "read from 1.png;"
    )
    (folder / "3.txt").unlink()
    (folder / "4.png").write_bytes(b"")
    store = run(f"file://{folder}", missing_caption="skip")
    assert store.manifest.receipt.counts == {"missing caption": 1, "unreadable": 1}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{tmp}/none", r"^--source=.*none: there is no such file or folder; correct it\.$"),
        (
            "file://{tmp}/none",
            r"^--source=file://.*none: there is no such file or folder; correct it\.$",
        ),
        (
            "s3:/bucket/photos",
            r"^--source=s3:/bucket/photos is neither a path nor a URI; write scheme://",
        ),
        (
            "s3://name:word@bucket/photos",
            r"^--source=s3://\.\.\. holds a password or key.*AWS_ACCESS_KEY_ID",
        ),
        (
            "nosuch://bucket/photos",
            r"^--source=nosuch://bucket/photos cannot be opened .*known are a folder's path",
        ),
    ],
)
def test_sources_that_are_not_there(run, tmp_path, source, message, home):
    with pytest.raises((UserError, ValueError), match=message.removeprefix("^")):
        run(source.format(tmp=tmp_path))
    assert not home.stores.exists()


@pytest.mark.slow
def test_an_object_store_gives_the_same_set_and_its_failures_are_no_damage(
    run, folder, expected, monkeypatch
):
    import boto3

    with s3_at_hand("photos") as server:
        client = boto3.client("s3", endpoint_url=f"http://{server.endpoint}")
        for file in folder.iterdir():
            client.upload_file(str(file), "photos", f"deep/set/{file.name}")
        uri = f"s3://photos/deep/set?{server.query}"
        assert run(uri).fingerprint == expected
        assert len(run(f"s3://photos/deep/set/3.png?{server.query}", caption_from="none")) == 1
        with refused(r"deep/none.*: there is no such file or folder"):
            run(f"s3://photos/deep/none?{server.query}")

        def withdraw(request):
            if request == "GET /photos/deep/set/0.png":
                client.delete_object(Bucket="photos", Key="deep/set/4.png")

        server.before = withdraw
        monkeypatch.setattr("ditlab.data.images.sources.AHEAD", 1)
        with pytest.raises(
            Unreachable, match=r"4\.png cannot be read \(.*give the same command again\.$"
        ):
            run(uri)
        server.before = lambda request: None
        client.upload_file(str(folder / "4.png"), "photos", "deep/set/4.png")
        assert run(uri).fingerprint == expected


@pytest.mark.slow
def test_memory_does_not_grow_with_the_source(run, tmp_path):
    """Images of one block, all of one size, of which a block of a store holds twelve: 12 and 30 MB
    of pixels.
    """
    picture = encoded(smooth(340, 340), "JPEG", quality=50)
    for number in (40, 100):
        files = {f"{n:03d}.jpg": (picture, f"slope {n}") for n in range(number)}
        captioned_folder(tmp_path / f"of-{number}", files)
    peaks = []
    for number in (40, 40, 100):  # the first imports modules
        tracemalloc.start()
        run(tmp_path / f"of-{number}", resolution=320, name=f"of-{number}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 2**20, peaks
    assert peaks[2] < 3 * 2**22, peaks


@pytest.mark.slow
def test_missing_credentials_are_named(run, monkeypatch):
    from moto.core.responses import settings

    with s3_at_hand("photos") as server:
        monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
        with pytest.raises(
            Unreachable,
            match=r"^--source=s3://photos/set.* cannot be listed .*credentials in the env",
        ):
            run(f"s3://photos/set?{server.query}")
