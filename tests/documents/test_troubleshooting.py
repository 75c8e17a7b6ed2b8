"""Every message on the troubleshooting page stands in the code; those on specs are made by the
mistake itself.
"""

import re
from functools import cache

import pytest

from ditlab import UserError, load, load_sweep
from support.documents import CHECKOUT

PAGE = CHECKOUT / "docs" / "troubleshooting.md"
QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
LEAST_SHARE = 0.35
"""Share of a message's characters that texts of the code hold; names and numbers are the rest."""
LEAST_CHARACTERS = 9
"""Characters of a text's longest piece, below which it says nothing."""
_LITERALS = re.compile(r'(?:f?"(?:[^"\\\n]|\\.)*"\s*)+')
_LITERAL = re.compile(r'f?"((?:[^"\\\n]|\\.)*)"')
_VALUE = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")

MISTAKES = (
    ["model.dpeth=6"],
    ["trainign.steps=3"],
    ["model.depth=abc"],
    ["model.family=dti"],
    ["schedule.kind=cosin"],
    ["batch.size=100", "batch.micro=64"],
    ["resources.workers=3", "batch.size=100"],
    ["schedule.warmup=20", "training.steps=100", "training.epochs=3"],
    ["training.steps=20"],
    ["model.patch_size=3"],
    ["sampling.guidance=2"],
    ["tracking.uri=http://me:word@host:5000"],
    ["model.depth"],
    ["evaluation.quality=50"],
    ["checkpoint.every=off"],
)
"""Settings with which experiments/digits/dit.yaml gives a message of the page."""
FILES = (
    "- a\n",
    "name: !mine x\n",
    "name: a\nname: b\n",
    "name: a\n\tb: 3\n",
    "name: a\nmodel: {depth: 3}\n",
    "name: a\nbase: dit.yaml\n",
)
SWEEP = "name: a\nbase: {digits}\nmetric: {metric}\nspace: {space}\nsearch: {search}\ntrials: 4\n"
SWEEPS = (
    {
        "metric": "train/loss",
        "space": "{objective.weights.direction: {kind: uniform, low: 0, high: 1}}",
    },
    {
        "metric": "eval/velocity",
        "search": "{kind: grid}",
        "space": (
            "{model.depth: {kind: grid, values: [1, 2, 3]}, optimizer.lr: {kind: grid, values: [0.1, 0.2]}}"
        ),
    },
)


@cache
def _texts():
    """Texts of the code, each the pieces between its values."""
    found = []
    for root in ("platform/ditlab", "models/ditlab_models"):
        for path in sorted((CHECKOUT / root).rglob("*.py")):
            for literals in _LITERALS.finditer(path.read_text()):
                whole = "".join(_LITERAL.findall(literals[0])).replace('\\"', '"').replace("`", "'")
                pieces = [piece for piece in _VALUE.sub("\0", whole).split("\0") if piece]
                if max(map(len, pieces), default=0) >= LEAST_CHARACTERS:
                    found.append(pieces)
    return found


def _covered(message, pieces):
    """Places of a message that a text's pieces cover, all of them found in their order."""
    places = set()
    end = 0
    for piece in pieces:
        if (start := message.find(piece, end)) < 0:
            return set()
        end = start + len(piece)
        places |= set(range(start, end))
    return places


def stands_in_the_code(message):
    """Tell whether texts of the code make up enough of a message."""
    places = set()
    for pieces in _texts():
        if pieces[0] in message:
            places |= _covered(message, pieces)
    return len(places) >= LEAST_SHARE * len(message)


def test_messages_stand_in_the_code(made):
    assert len(QUOTED) >= 60
    missing = [
        message for message in QUOTED if message not in made and not stands_in_the_code(message)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "untrue",
    [
        "batch.size=100 is not divisible by batch.micro=64; choose another.",
        "run 'digits' was not found under runs; begin a fresh one.",
        "the graphics card of this computer has too little memory left",
    ],
)
def test_an_untrue_message_is_found(untrue):
    assert not stands_in_the_code(untrue)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Messages that the mistakes above give, as the page writes them: without the folder of the
    file.
    """
    folder = tmp_path_factory.mktemp("mistakes")
    digits = CHECKOUT / "experiments" / "digits" / "dit.yaml"
    messages = []
    for number, text in enumerate([*FILES, *(_sweep(digits, fields) for fields in SWEEPS)]):
        path = folder / ("spec.yaml" if number < len(FILES) else "sweep.yaml")
        path.write_text(text)
        messages.append(_message(load if number < len(FILES) else load_sweep, path))
    messages += [_message(load, digits, overrides) for overrides in MISTAKES]
    return [
        re.sub(r"^\S*/(?=\w+\.yaml: )", "", each).removeprefix("dit.yaml: ").replace("`", "'")
        for each in messages
    ]


def _sweep(base, fields):
    return SWEEP.format(**{"digits": base, "search": "{kind: random}", **fields})


def _message(load_file, *arguments):
    with pytest.raises(UserError) as error:
        load_file(*arguments)
    return str(error.value)


def test_mistakes_in_a_spec_give_the_messages_of_the_page(made):
    assert not [message for message in made if message not in QUOTED]


def test_each_message_stands_once():
    assert len(set(QUOTED)) == len(QUOTED)


def test_every_row_has_a_message_in_code_marks():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len([row for row in rows if not row.startswith("| message |")]) == len(QUOTED)
