"""Files that were made to fit by somebody who knows the formats: what belongs to them elsewhere gives them away."""

from dataclasses import replace

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.storage.files import without_checksum
from support.damaged.verified import off, opened, rewrite_lines, verified


def test_a_journal_s_loss_with_its_checksum(home):
    def better(record):
        if record["kind"] == "metrics" and record["step"] == 7 and "train/loss" in record["values"]:
            record["values"]["train/loss"] *= 0.5
        return record

    path = opened(home).folder.journal
    rewrite_lines(path, lambda record: record)
    assert verified(home).holds, "as it was"
    rewrite_lines(path, better)
    assert "step 7: train/loss is" in off(home)["journal"] and "one was altered" in off(home)["journal"]


def test_lines_of_a_journal_that_are_gone(home):
    path = opened(home).folder.journal
    rewrite_lines(path, lambda record: None if record["kind"] == "metrics" and record["step"] == 6 else record)
    assert "1 steps that were logged are not there, the first one 6" in off(home)["journal"]


def test_an_end_that_is_gone(home):
    path = opened(home).folder.journal
    rewrite_lines(path, lambda record: None if record["kind"] == "end" else record)
    assert "its end is not there" in off(home)["journal"]


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
    path.write_bytes(replace(own, spec_hash="0" * 16, receipt={**own.receipt, "chain": "0" * 64}).to_bytes())
    found = off(home)
    assert "checkpoint 8 has the chain 000000000000" in found["receipts"]
    assert "checkpoint 8 was trained by a spec of hash 0000000000000000" in found["spec"]
    path.write_bytes(replace(own, receipt={**own.receipt, "since": "4"}).to_bytes())
    assert "checkpoint 8 counts its chain from step 4, and the receipts from 0" in off(home)["receipts"]
