"""The JSON line is JSON."""

import json

from ditlab.cli.common import emit


def test_what_json_cannot_say_becomes_null(capsys):
    emit({"metrics": {"train/grad_norm": float("inf"), "train/loss": 0.5}, "files": [float("nan"), 1]}, as_json=True)
    line = capsys.readouterr().out
    assert json.loads(line) == {"metrics": {"train/grad_norm": None, "train/loss": 0.5}, "files": [None, 1]}
