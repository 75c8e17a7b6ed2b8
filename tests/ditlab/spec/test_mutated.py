"""Mutated specs and `--set` values: whatever they hold, they load or are refused in sentences."""

import json
import random
import re
import shutil

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import build_experiment, is_sweep, load_experiment
from ditlab.spec.overrides import merge, nested
from ditlab.spec.sweep import load_sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab.spec.values import value_at
from ditlab.spec.yaml_text import dump_yaml, parse_yaml
from support.specs import EXPERIMENTS, TRAINED

CHARACTERS = [
    "\0",
    "\x1b",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ud800",
    "\t",
    "\r",
    "\n",
    *"!&*%@`'\"#:,[]{}?-|>0~=.",
]
TOKENS = (
    """
!!bool 7|!!int abc|!!float x|!!null x|!!str [a]|!!map x|!!seq {}|2020-13-45|1:30:00|0o9|_|-_|0x_|1_000|1e400|1e-400|.5
~|null|true|[]|{}|[[]]|{[a]: b}|{{a: b}: c}|{1: 2}|{null: 1}|{true: 1, 1: 2}|"\\ud800"|"\\0"|"\\e[31m"|&a [*a]|*a|&a 1
{<<: {a: 1}}|%YAML 1.1|---|9223372036854775808|-99999999999999999999999|1e308|!<x>|!!python/name:os|{kind: 3}
{kind: [1]}|{kind: {a: 1}}|{kind: null}|{family: [1]}|{family: null}|{kind: arrow, path: "\\0"}|{min: 1, max: null}
{a: {b: {c: 1}}}|[1, [2, {a: 3}]]|{"\\ud800": 1}|{"\\e[0m": 1}|{'': 1}|{'.': 1}|{'a.b': 1}|''|' '|0|-1|0.5|-0.0|nan|.inf
""".strip()
    .replace("\n", "|")
    .split("|")
)
TOKENS += ["0x" + "f" * 5_000, "0o" + "7" * 5_000, "9" * 4_400, "1" * 400, "x" * 300, "../" * 2_000]
NAMES = [
    "extends",
    "base",
    "space",
    "fixed",
    "fixed.training.steps",
    "space.optimizer.lr",
    "space.x",
    "kind",
    "",
    "a..b",
]


def mutated(text, draw):
    """A text with one to three changes of characters, values, words or lines."""
    for _ in range(draw.randint(1, 3)):
        lines, place = text.split("\n"), draw.randint(0, len(text))
        line = draw.randrange(len(lines))
        match draw.randrange(6):
            case 0:
                text = text[:place] + draw.choice([*TOKENS, *CHARACTERS]) + text[place:]
            case 1:
                text = text[:place] + text[place + draw.randint(1, 20) :]
            case 2:
                lines[line] = f"{lines[line].split(':')[0]}: {draw.choice(TOKENS)}"
                text = "\n".join(lines)
            case 3:
                lines.insert(line, " " * draw.randint(0, 4) + draw.choice(lines))
                text = "\n".join(lines)
            case 4:
                words = list(re.finditer(r"[\w.+-]+", text))
                if words:
                    word = draw.choice(words)
                    text = text[: word.start()] + draw.choice(TOKENS) + text[word.end() :]
            case 5:
                del lines[line]
                knob = draw.choice(["extends", "base"])
                lines.append(f"{knob}: {draw.choice([*TOKENS, '.', 'dit.yaml'])}")
                text = "\n".join(lines)
    return text


def fields(mapping, above=""):
    paths = []
    for key, value in mapping.items():
        paths.append(f"{above}{key}")
        if isinstance(value, dict):
            paths += fields(value, f"{above}{key}.")
    return paths


def load(path, overrides):
    if not is_sweep(path):
        return load_experiment(path, overrides).to_dict()
    sweep = load_sweep(path, overrides)
    check_sweep(sweep, str(path))
    return sweep.to_dict()


@pytest.mark.parametrize(
    "rounds", [60, pytest.param(4_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_every_mutation_loads_or_is_refused(rounds, tmp_path):
    draw = random.Random(17)
    shutil.copytree(EXPERIMENTS, tmp_path / "experiments")
    files = [tmp_path / "experiments" / path.relative_to(EXPERIMENTS) for path in TRAINED]
    paths = {
        file: [*fields(load(file, [])), *NAMES] for file in (files if rounds > 1_000 else files[:3])
    }
    num_refused = 0
    for _ in range(rounds):
        file = draw.choice(list(paths))
        before, overrides = file.read_text(), []
        if draw.random() < 0.5:
            file.write_bytes(mutated(before, draw).encode("utf-8", "surrogatepass"))
        else:
            value = draw.choice(TOKENS)
            overrides = [
                f"{draw.choice(paths[file])}={value if draw.random() < 0.8 else mutated(value, draw)}"
            ]
        try:
            mapping = load(file, overrides)
        except UserError as error:
            num_refused += 1
            assert all(
                line.isprintable() and len(line) < 1_000 for line in str(error).splitlines()
            ), str(error)
        else:
            assert parse_yaml(dump_yaml(mapping), "written") == json.loads(
                json.dumps(mapping, allow_nan=False)
            )
        file.write_text(before)
    print(f"{rounds} mutations, {num_refused} refused")
    assert rounds / 2 < num_refused < rounds


EXTREMES = [-1, 10**400, 1.7e308]


def test_extreme_values_load_or_are_refused():
    """In every number of a spec of each family, some of whose products are infinite."""
    for file in (
        "digits/dit",
        "digits/unet_class",
        "region/small",
        "dlm/uniform",
        "pixelhdm/small",
    ):
        mapping = load_experiment(EXPERIMENTS / f"{file}.yaml").to_dict()
        numbers = [
            path
            for path in fields(mapping)
            if isinstance(value_at(mapping, path.split(".")), int | float)
        ]
        for path in numbers:
            for value in EXTREMES:
                try:
                    build_experiment(
                        merge(mapping, nested(path.split("."), value)), "spec.yaml"
                    ).content_hash()
                except UserError as error:
                    assert len(str(error)) < 2_000, (file, path)
