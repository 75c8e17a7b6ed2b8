"""Every changed byte is found, whatever the change: never taken for whole, never anything but a
sentence.
"""

import json
import os
import random

import pytest

from ditlab.checkpoints.manifest import MANIFEST, _sealed
from ditlab.checkpoints.store import CheckpointStore, open_checkpoint
from support.damage import refused
from support.trainings.checkpoints import edit_bytes, files_of, folder_of, is_step, save, shard_of


def change_at_random(file, draw):
    """One change of one file; returns what to call it."""
    content = bytearray(file.read_bytes())
    kind = draw.choices(
        ["bit", "byte", "cut", "insert", "append", "swap", "empty", "gone"],
        [40, 20, 10, 8, 8, 8, 3, 3],
    )[0]
    place = draw.randrange(len(content))
    if kind == "gone":
        file.unlink()
        return kind
    if kind == "bit":
        content[place] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        content[place] = (content[place] + draw.randrange(1, 256)) % 256
    elif kind == "cut":
        del content[place : place + draw.choice([1, 8, len(content)])]
    elif kind == "insert":
        content.insert(place, draw.choice([0x20, 0x0A, 0, draw.randrange(256)]))
    elif kind == "append":
        content += bytes([draw.choice([0x20, 0x0A, 0])])
    elif kind == "swap":
        other = draw.choice(
            [index for index, value in enumerate(content) if value != content[place]]
        )
        content[place], content[other] = content[other], content[place]
    else:
        content.clear()
    file.write_bytes(content)
    return f"{kind} at {place} of {file.name}"


@pytest.mark.slow
def test_a_thousand_random_changes(tmp_path):
    run, alone = tmp_path / "run", tmp_path / "alone"
    for step in (1, 2):
        save(run, step)
    save(alone, 2)
    draw = random.Random(0)
    for number in range(1000):
        place = (run, alone)[number % 2]
        file = files_of(place, 2)[draw.randrange(2)]
        original = file.read_bytes()
        what, warnings = change_at_random(file, draw), []
        found = CheckpointStore.at(place).newest(warnings.append)
        assert found.manifest.step == 1 if place == run else found is None, what
        assert len(warnings) == (0 if what == "gone" and file.name == MANIFEST else 1), what
        with refused("^.{1,599}$"):
            CheckpointStore.at(place).open(2)
        file.write_bytes(original)
    assert is_step(run, 2) and is_step(alone, 2)


def edited(change):
    """An edit of the manifest of step 2."""
    return lambda place: edit_bytes(folder_of(place, 2) / MANIFEST, change)


def vouched(change):
    """An edit of the manifest under a digest that is right: not damage but somebody's hand, or a
    fault of a writer.
    """

    def edit(raw):
        content = json.loads(raw)
        del content["digest"]
        change(content)
        return _sealed(json.dumps(content, separators=(",", ":")).encode())

    return edited(edit)


def replace_by_folder(file):
    file.unlink()
    file.mkdir()


DAMAGE = {
    "shard is a terabyte": lambda place: os.truncate(shard_of(place, 2), 1 << 40),
    "shard is a folder": lambda place: replace_by_folder(shard_of(place, 2)),
    "a list": edited(lambda raw: b"[1]"),
    "spaces between": edited(lambda raw: json.dumps(json.loads(raw)).encode()),
    "a key more": vouched(lambda content: content.update(extra=1)),
    "step is text": vouched(lambda content: content.update(step="two")),
    "step is below zero": vouched(lambda content: content.update(step=-2)),
    "a piece too short": vouched(lambda content: content["pieces"][0].pop()),
    "a piece of another shard": vouched(
        lambda content: content["pieces"][0].__setitem__(0, "shard-x")
    ),
    "another step": vouched(lambda content: content.update(step=3)),
    "no shards": vouched(lambda content: content.update(shards={})),
    "a path for a shard": vouched(
        lambda content: content.update(
            pieces=[], shards={f"../../{name}": shard for name, shard in content["shards"].items()}
        )
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_checkpoint_is_passed_over_and_said_so(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        save(tmp_path / "run", step)
    DAMAGE[damage](tmp_path / "run")
    warnings = []
    assert CheckpointStore.at(tmp_path / "run").newest(warnings.append).manifest.step == 1
    assert len(warnings) == 1 and warnings[0].endswith("Falling back to the one before.")
    assert "\n" not in warnings[0] and len(warnings[0]) < 600
    with refused("."):
        open_checkpoint(folder_of(tmp_path / "run", 2))


READING = {
    "no such tensor": ("ema", 12, lambda piece: piece.__setitem__(1, "ema")),
    "past the end": ("master", 13, lambda piece: piece.__setitem__(4, 13)),
    "another start": ("master", 12, lambda piece: piece.__setitem__(3, 1)),
}


@pytest.mark.parametrize("fault", READING)
def test_pieces_that_are_not_in_the_shard(tmp_path, fault):
    """In a manifest whose digest is right."""
    save(tmp_path, 2)
    field, stop, change = READING[fault]
    vouched(lambda content: change(content["pieces"][0]))(tmp_path)
    reader = CheckpointStore.at(tmp_path).open(2)
    with refused(r"is not whole|cannot be read|other values"):
        reader.read(field, "network.weight", 0, stop)


def test_a_checkpoint_of_another_format_is_no_damaged_one(tmp_path):
    """An earlier one would have that format, too."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    vouched(lambda content: content.update(format=3))(tmp_path)
    with refused(r"has checkpoint format 3, and this version reads format 4; use the version"):
        CheckpointStore.at(tmp_path).newest()


@pytest.mark.parametrize("damage", ["shard is a terabyte", "shard is a folder"])
def test_a_worker_that_hashes_no_shard_says_so(tmp_path, damage):
    """The first worker hashes the shards; the others open them right away."""
    save(tmp_path, 2)
    DAMAGE[damage](tmp_path)
    with CheckpointStore.at(tmp_path).open(2, verify=False) as reader, refused("."):
        reader.weights(prefix="")


@pytest.mark.parametrize("name", ["circle", "step-00000003"])
def test_a_link_in_the_store_hides_no_checkpoint(tmp_path, name):
    save(tmp_path / "run", 2)
    (tmp_path / "run" / name).symlink_to(name)
    assert CheckpointStore.at(tmp_path / "run").newest().manifest.step == 2


def test_a_store_that_is_a_link_is_read(tmp_path):
    save(tmp_path / "disk", 2)
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    assert CheckpointStore.at(tmp_path / "run").newest().manifest.step == 2
    save(tmp_path / "run", 3)
    assert is_step(tmp_path / "disk", 3)
