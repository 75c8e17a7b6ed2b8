"""The comparison of two commits finds what differs, and nothing where nothing does."""

from pathlib import Path

import pytest

from regression.compare_commits import compare, losses, shape
from support.python_process import run_python

SCRIPT = Path(__file__).parent / "compare_commits.py"


def test_a_difference_is_named_and_fails(capsys):
    same, other = {"state": "1", "losses": "2"}, {"state": "1", "losses": "3"}
    assert compare(["a", "b"], {"a": same, "b": same}, {"a": same, "b": other}) == 1
    assert "same       a: losses, state" in (out := capsys.readouterr().out)
    assert "DIFFERENT  b" in out and "losses: after  3" in out and "1 of 2" in out
    keys = (
        {"runs": {"run": ["str"], "step": "int"}},
        {"runs": {"run": ["str", "NoneType"], "step": "int"}},
    )
    assert compare(["keys"], {"keys": keys[0]}, {"keys": keys[1]}) == 1
    assert "    runs.run: before []\n    runs.run: after  ['NoneType']" in capsys.readouterr().out
    # what fails on both sides proves nothing
    assert compare(["a"], {"a": {"error": "x"}}, {"a": {"error": "x"}}) == 1
    assert compare(["a"], {}, {}) == 1


def test_losses_leave_out_what_measures_the_machine(tmp_path):
    line = '{"kind":"metrics","step":1,"values":{"train/loss":0.5,"train/samples_per_second":9,"time/forward":1}}\n'
    (tmp_path / "journal.jsonl").write_text(line + '{"kind":"metr')
    assert losses(tmp_path) == [[1, "train/loss", 0.5]]


def test_keys_are_compared_with_the_types_of_their_values():
    assert shape({"a": [1, 2.0], "b": {"c": None}}) == {
        "a": ['"float"', '"int"'],
        "b": {"c": "NoneType"},
    }


@pytest.mark.slow
def test_a_checkout_computes_what_its_commit_does():
    run_python(SCRIPT, "HEAD", "--after", "HEAD", "--all", "--only", "muon", timeout=900)
