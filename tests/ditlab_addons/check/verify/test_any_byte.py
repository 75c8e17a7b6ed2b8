"""Any byte that is changed in a run's files is found, and any file that is cut, grown or
replaced.
"""

import random

import pytest

from support.damaged.verified import FileChecks

FILES = {
    "receipts/steps.bin": "receipts",
    "receipts/attempts.jsonl": "receipts",
    "journal.jsonl": "journal",
    "checkpoints/step-00000008/manifest.json": "checkpoints",
    "checkpoints/step-00000012/shard-*.safetensors": "checkpoints",
    "checkpoints/averages/step-00000005/*.safetensors": "averages",
    "checkpoints/averages/step-00000007/manifest.json": "averages",
    "spec.yaml": "spec",
}
"""Part that finds it, by a file of the run's folder."""


def files_of(checks):
    """Every file that is damaged, those of the store of data too, and the part that finds it."""
    found = [
        (path, part)
        for name, part in FILES.items()
        for path in sorted(checks.run.folder.path.glob(name))
    ]
    stores = [path for path in sorted(checks.run.home.stores.rglob("*")) if path.is_file()]
    return found + [
        (path, "data") for path in stores if path.suffix in (".arrow", ".json", ".bin", ".npy")
    ]


def missed_flips(checks, num, seed):
    """Change `num` bytes of each file, one at a time at random; return the places that no check has
    found.
    """
    draw, missed = random.Random(seed), []
    for path, part in files_of(checks):
        content = path.read_bytes()
        ends = [0, len(content) - 1]
        for place in ends + [draw.randrange(len(content)) for _ in range(num)]:
            changed = bytearray(content)
            changed[place] ^= draw.randrange(1, 256)
            path.write_bytes(changed)
            if not checks.is_off(part):
                missed.append(f"{path.name}, byte {place}: {content[place]} to {changed[place]}")
        path.write_bytes(content)
        assert not checks.is_off(part), path
    return missed


def test_a_byte_anywhere(home):
    assert missed_flips(FileChecks(home), 2, seed=1) == []


@pytest.mark.slow
def test_many_bytes(home):
    assert missed_flips(FileChecks(home), 400, seed=2) == []


@pytest.mark.slow
def test_every_byte_of_the_texts(home):
    """Every place of the attempts, the spec's stamp, and the journal's last lines, with bits that
    texts differ in.
    """
    checks, missed = FileChecks(home), []
    folder = checks.run.folder
    for path, part, first in (
        (folder.receipt_attempts, "receipts", 0),
        (folder.spec, "spec", -120),
        (folder.journal, "journal", -600),
    ):
        content = path.read_bytes()
        for place in range(first % len(content), len(content)):
            for mask in (1, 2, 32):
                changed = bytearray(content)
                changed[place] ^= mask
                path.write_bytes(changed)
                if not checks.is_off(part):
                    missed.append(f"{path.name}, byte {place}")
        path.write_bytes(content)
    assert missed == []


def test_files_cut_grown_and_replaced(home):
    checks, missed = FileChecks(home), []
    for path, part in files_of(checks):
        content = path.read_bytes()
        for what in ("cut by one", "cut in half", "empty", "grown", "gone", "folder"):
            path.unlink()
            if what == "folder":
                path.mkdir()
            elif what != "gone":
                cut = {
                    "cut by one": content[:-1],
                    "cut in half": content[: len(content) // 2],
                    "empty": b"",
                }
                path.write_bytes(cut.get(what, content + b"more\n"))
            # A checkpoint without a manifest, or with a folder in its place, is a pruned one;
            # built-in data without theirs are built again.
            is_no_damage = (path.name, what) in {
                ("manifest.json", "gone"),
                ("manifest.json", "folder"),
                ("store.json", "gone"),
            }
            if not is_no_damage and not checks.is_off(part):
                missed.append(f"{path.name}: {what}")
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)
    assert missed == []
