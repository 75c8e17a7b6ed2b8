"""The section `start` of a spec: a fork's parent and step."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import load_experiment
from ditlab.spec.quick import shorten_experiment
from ditlab.spec.start import NamedStart, parse_start
from ditlab.spec.yaml_text import dump_yaml
from support.damage import refused
from support.trainings.workers import TINY, tiny

START = {"run": "3f2a1b9c", "step": 400}


def test_parent_step_and_state_count_in_the_hash_and_a_spec_without_start_keeps_its_own():
    changes = ({}, {"run": "3f2a1b9d"}, {"step": 401}, {"state": "trained"})
    starts = [None, *(START | change for change in changes)]
    hashes = [tiny(training__steps=500, start=start).content_hash() for start in starts]
    assert len(set(hashes)) == 5
    without = tiny(training__steps=500)
    assert without.content_hash() == hashes[0] == "214766749b2ab595"  # of a version without forks


def test_a_start_by_set_and_its_mistakes(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_yaml(TINY))
    at = 'start={"run": "12345678", "step": 3, "state": "all"}'
    found = load_experiment(path, [at, "start.state=averaged"]).start
    assert (found.state, found.point) == ("averaged", "12345678@3")
    for override, sentence in (
        (
            "start={run: ../x, step: 3}",
            r"start.run='\.\./x' is no id of a run; `ditlab runs` lists them\.",
        ),
        ("start={run: 12345678, step: 3}", r"start.run=12345678 must be text \(in quotes"),
        ("start={run: ab, step: -1}", r"start.step=-1 must be at least 0"),
        ("start={run: ab}", r"start.step is missing"),
        ("start={run: ab, step: 3, state: half}", r"start.state=.?half.? must be"),
    ):
        with refused(sentence):
            load_experiment(path, [override])


def test_a_short_fork_trains_its_few_steps_beyond_its_start():
    long = tiny(training__steps=1000, start=START)
    short = shorten_experiment(long).spec
    assert short.training.steps == 420 and short.start == long.start
    averaged = tiny(training__steps=1000, start={**START, "state": "averaged"})
    assert shorten_experiment(averaged).spec.training.steps == 20


def test_the_text_of_from():
    assert parse_start("digits-dit@400") == NamedStart("digits-dit", 400)
    assert parse_start("3f2a") == NamedStart("3f2a", None)
    texts = ("", "@", "@3", "a@", "a@b", "a@-3", "a@1.5", "a@@3", "a b@3", "a/b", "../a@3", "a@1@2")
    for text in (*texts, "\x1b[31m@3", "x" * 200):
        with pytest.raises(
            UserError, match=r"^--from .* names no checkpoint; write RUN@"
        ) as caught:
            parse_start(text)
        assert str(caught.value).isprintable()
