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


@pytest.mark.parametrize("num", [2, pytest.param(400, marks=pytest.mark.slow)])
def test_bytes_anywhere(home, num):
    """`num` of each file, one at a time at random, and its ends."""
    checks = FileChecks(home)
    draw, missed = random.Random(num), []
    for path, part in files_of(checks):
        content = path.read_bytes()
        places = [0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(num))]
        for place in places:
            changed = bytearray(content)
            changed[place] ^= draw.randrange(1, 256)
            path.write_bytes(changed)
            if not checks.is_off(part):
                missed.append(f"{path.name}, byte {place}: {content[place]} to {changed[place]}")
        path.write_bytes(content)
        assert not checks.is_off(part), path
    assert missed == []


def test_files_cut_grown_and_replaced(home):
    checks, missed = FileChecks(home), []
    for path, part in files_of(checks):
        content = path.read_bytes()
        damaged = {
            "cut by one": content[:-1],
            "cut in half": content[: len(content) // 2],
            "empty": b"",
            "grown": content + b"more\n",
        }
        for what in (*damaged, "gone", "folder"):
            path.unlink()
            if what == "folder":
                path.mkdir()
            elif what != "gone":
                path.write_bytes(damaged[what])
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
