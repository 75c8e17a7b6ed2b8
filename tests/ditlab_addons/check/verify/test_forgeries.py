"""Files that were made to fit by somebody who knows the formats: what belongs to them elsewhere
gives them away.
"""

from dataclasses import replace

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.storage.files import without_checksum
from support.damaged.verified import off, opened, rewrite_lines, verified


def better(record):
    if record["kind"] == "metrics" and record["step"] == 7 and "train/loss" in record["values"]:
        record["values"]["train/loss"] *= 0.5
    return record


LINES = {
    "step 7: train/loss is": better,
    "1 steps that were logged are not there, the first one 6": lambda record: (
        None if record["kind"] == "metrics" and record["step"] == 6 else record
    ),
    "its end is not there": lambda record: None if record["kind"] == "end" else record,
}
"""Changes of a journal's records, None for one that goes, by the words that name them."""


def test_lines_of_a_journal_that_are_altered_or_gone_with_right_checksums(home):
    path = opened(home).folder.journal
    whole = path.read_bytes()
    rewrite_lines(path, lambda record: record)
    assert verified(home).holds, "as it was"
    for words, change in LINES.items():
        path.write_bytes(whole)
        rewrite_lines(path, change)
        assert words in off(home)["journal"], words


def test_a_line_that_lost_its_checksum(home):
    path = opened(home).folder.journal
    lines = path.read_bytes().splitlines(keepends=True)
    for number in (0, len(lines) - 1):  # the first one would pass for one of an earlier version
        bare = without_checksum(lines[number].rstrip()) + b"\n"
        path.write_bytes(b"".join([*lines[:number], bare, *lines[number + 1 :]]))
        assert f"line {number + 1}, byte" in off(home)["journal"]


def test_a_checkpoint_of_another_run(home):
    """Whole in itself, with the other run's spec and chain."""
    path = opened(home).folder.checkpoints / "step-00000008" / "manifest.json"
    own = CheckpointManifest.from_bytes(path.read_bytes(), "")
    path.write_bytes(
        replace(own, spec_hash="0" * 16, receipt={**own.receipt, "chain": "0" * 64}).to_bytes()
    )
    found = off(home)
    assert "checkpoint 8 has the chain 000000000000" in found["receipts"]
    assert "checkpoint 8 was trained by a spec of hash 0000000000000000" in found["spec"]
    path.write_bytes(replace(own, receipt={**own.receipt, "since": "4"}).to_bytes())
    assert (
        "checkpoint 8 counts its chain from step 4, and the receipts from 0"
        in off(home)["receipts"]
    )
