import gzip
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ditlab.data import mnist
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.mnist import IMAGES_MAGIC, download, read_idx
from ditlab.progress import ignore_progress
from ditlab.spec.importing import MnistOptions
from support.damage import refused

REAL = Path(__file__).parents[5] / "shared" / "data" / "mnist"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "idx"
    path.mkdir()
    return path


@pytest.fixture
def importing(folder, home):
    def run(source=folder, checksum=False):
        options = MnistOptions(source=source, checksum=checksum)
        (imported,) = run_import("mnist", ImportRequest(home.stores, home.caches, options))
        return imported

    return run


@pytest.fixture
def look_alike(folder, write_idx):
    """Files of the test split's form, 20 of them."""
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28))
    write_idx(folder / "t10k-images-idx3-ubyte.gz", images)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(20) % 10)
    return images


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_read_back(folder, write_idx, suffix):
    values = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    write_idx(folder / f"x{suffix}", values)
    read = read_idx(folder / f"x{suffix}", IMAGES_MAGIC)
    assert np.array_equal(read.values, values)
    assert read.gzipped == (suffix == ".gz")
    assert (read.md5 == read.content_md5) == (suffix == "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            struct.pack(">4I", 2051, 2, 2, 2) + bytes(7),
            r"x is not whole: 23 bytes, and its sizes \[2, 2, 2\] need 24",
        ),
        (b"", "x starts with magic number 0"),
        (
            struct.pack(">4I", 2049, 2, 2, 2) + bytes(8),
            "magic number 2049, and idx images with 2051; the files may be",
        ),
        (gzip.compress(bytes(500), mtime=0)[:-9], "x cannot be read"),
    ],
)
def test_idx_files_that_are_not_whole_are_refused_with_their_sizes(folder, content, message):
    (folder / "x").write_bytes(content)
    with refused(message):
        read_idx(folder / "x", IMAGES_MAGIC)


def test_a_look_alike_needs_no_checksum(importing, look_alike):
    with refused(r"t10k-images.*\.gz has MD5 \w{32}, and MNIST's has 9fb629c4\w+.*--no-checksum"):
        importing(checksum=True)
    imported = importing()
    store = imported.store
    assert (store.name, len(store), imported.outcome) == ("mnist-test", 20, "written")
    assert np.array_equal(store.tensor("image")[:, 0].numpy(), look_alike)
    assert store.tensor("label").tolist() == [n % 10 for n in range(20)]
    assert store.columns["image"].value_range == (0, 255)
    assert {file.check for file in store.manifest.source.files} == {"skipped"}


def test_importing_again_reports_the_outcome(importing, look_alike, folder, write_idx):
    importing()
    assert importing().outcome == "unchanged"
    write_idx(folder / "t10k-labels-idx1-ubyte", np.zeros(20))
    imported = importing()
    assert imported.outcome == "replaced"
    assert not imported.store.tensor("label").any()


def test_importing_again_repairs_an_altered_store(importing, look_alike):
    imported = importing()
    shard = next(imported.store.path.glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[2000] ^= 1
    shard.write_bytes(content)
    repaired = importing()
    assert repaired.outcome == "replaced"
    assert np.array_equal(repaired.store.tensor("image")[:, 0].numpy(), look_alike)


def test_unpacked_training_files_are_imported_with_a_note(importing, folder, write_idx):
    write_idx(folder / "train-images.idx3-ubyte", np.zeros((3, 28, 28)))
    write_idx(folder / "train-labels.idx1-ubyte", np.arange(3))
    imported = importing(checksum=True)
    source = imported.store.manifest.source
    assert "not checked" in source.note
    assert [file.check for file in source.files] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("stem", "values", "message"),
    [
        ("labels-idx1-ubyte", np.zeros(19), r"holds 20 images and .* 19 labels"),
        ("labels-idx1-ubyte", np.arange(20), "'label' holds classes 0 to 19"),
        (
            "images-idx3-ubyte.gz",
            np.zeros((20, 32, 32)),
            r"holds images of \(32, 32\) pixels, expected \(28, 28\)",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    importing, look_alike, folder, write_idx, home, stem, values, message
):
    write_idx(folder / f"t10k-{stem}", values)
    with refused(message):
        importing()
    assert not (home.stores / "mnist-test").exists()


def test_half_a_split_and_none_are_named(importing, folder, write_idx):
    with refused(r"holds none of train-images-idx3-ubyte, .*; name the folder"):
        importing()
    write_idx(folder / "t10k-labels-idx1-ubyte", np.zeros(19))
    with refused(r"t10k-labels-idx1-ubyte and no t10k-images-idx3-ubyte\(\.gz\)"):
        importing()


@pytest.mark.skipif(not REAL.is_dir(), reason=f"MNIST's test files are not in {REAL}")
def test_the_real_test_files(home, importing):
    imported = importing(source=REAL, checksum=True)
    store = imported.store
    assert (len(store), store.name) == (10_000, "mnist-test")
    assert store.columns["label"].statistics.class_counts == (
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    )
    assert store.columns["image"].statistics.mean / 255 == pytest.approx(0.1325, abs=5e-5)
    assert [file.check for file in store.manifest.source.files] == ["md5", "md5"]
    assert store.tensor("label")[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.skipif(not REAL.is_dir(), reason=f"MNIST's test files are not in {REAL}")
def test_the_real_test_files_unpacked_and_packed_again(folder, importing):
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        content = gzip.decompress((REAL / f"{name}.gz").read_bytes())
        (folder / name).write_bytes(content)
    files = importing(checksum=True).store.manifest.source.files
    assert [file.check for file in files] == ["md5", "md5"]
    (folder / name).unlink()
    (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    assert importing(checksum=True).outcome == "unchanged"


CONTENT = np.random.default_rng(0).bytes(300_000)
CONTENT_MD5 = "226eb5dd464311666742d02a71db70dd"


@pytest.fixture
def mirror():
    """Web server with one file under /good/, cut short under /short/, another file under
    /wrong/.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            if "/missing/" in self.path:
                self.send_error(404)
                return
            body = b"something else" if "/wrong/" in self.path else CONTENT
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: 100_000 if "/short/" in self.path else len(body)])

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_downloads_come_whole_with_progress_and_only_once(mirror, folder):
    """The next mirror helps out."""
    address, requests = mirror
    mirrors = [f"{address}/{kind}/" for kind in ("missing", "wrong", "short", "good")]
    seen = []
    url = download("x.gz", CONTENT_MD5, mirrors, folder, lambda *now: seen.append(now))
    assert url == f"{address}/good/x.gz"
    assert (folder / "x.gz").read_bytes() == CONTENT
    assert seen[-1] == ("x.gz", 300_000, 300_000)
    assert download("x.gz", CONTENT_MD5, mirrors, folder, ignore_progress) is None
    assert len(requests) == 4


def test_a_broken_download_leaves_nothing(mirror, folder):
    address, _ = mirror
    with refused("connection ended after 100000 of 300000 bytes"):
        download("x.gz", CONTENT_MD5, [f"{address}/short/"], folder, ignore_progress)
    assert not list(folder.iterdir())


def test_without_a_mirror_the_remedy_is_named(monkeypatch, importing):
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    monkeypatch.setattr(mnist, "MIRROR_TIMEOUT", 2.0)
    with refused(r"Connection refused.*Fetch the four files \(train-images.*--source DIR"):
        importing(source=None)
