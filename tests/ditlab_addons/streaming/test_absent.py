"""Runs whose samples come by streams, where the add-on is not here."""

import sys

from support.datasets.bucketed import bucketed


def test_a_run_by_interleaved_streams_is_listed_and_shown_and_not_resumed(
    spec, tmp_path, ditlab, monkeypatch
):
    bucketed(tmp_path / "set", {(8, 8): 40})
    data = f"kind: arrow, path: {tmp_path / 'set'}"
    changes = ("model={channels: 3, num_classes: null}", "batch={size: 4, micro: 1}")
    model = [part for change in changes for part in ("--set", change)]
    by_streams = (
        *model,
        "--set",
        f"data={{{data}, order: {{kind: interleaved, streams: 4, window: 2}}}}",
    )
    said = ditlab("train", spec, "--local", *by_streams, "--set", "training.steps=2").ok()
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    for command in (["runs"], ["runs", "show", "small"], ["runs", "log", "small"]):
        said = ditlab(*command).ok()
        assert "interleaved" not in said.err, said.err
    refusal = (
        "the order 'interleaved' is of the add-on streaming, which is not here; put the folder that "
        "holds "
    )
    said = ditlab(
        "train", spec, "--local", *by_streams, "--resume", "small", "--set", "training.steps=3"
    )
    said.refused(refusal)
    said = ditlab("train", spec, "--dry-run", *model, "--set", f"data={{{data}, access: stream}}")
    said.refused(f"data.access=stream needs data.order.kind=interleaved, and {refusal}")
