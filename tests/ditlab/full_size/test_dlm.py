"""The published language model, whole: one optimiser step through the platform at 1024 tokens out
of 50257.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from ditlab.data.builtin import python_docs
from ditlab.data.text.tokenizer import END_TEXT

SPEC = Path(__file__).parents[3] / "experiments/dlm/uniform.yaml"
ONE_STEP = (
    "batch={size: 2, micro: 1}",
    "training={steps: 1, precision: fp32}",
    "schedule.warmup=0",
    "data.hold_out=0.2",
    "evaluation={every: 1, samples: 1, limit: 1}",
    "sampling.steps=2",
    "checkpoint.every=null",
)


def word_tokenizer(file: Path, vocabulary: int) -> None:
    """A tokeniser of GPT-2's size without a download: a word each, numbers of words that never
    occur after them.
    """
    words = sorted({word for text in python_docs() for word in text.split()})
    names = [END_TEXT, "<|unknown|>", *words[: vocabulary - 2]]
    names += [f"<|{number}|>" for number in range(vocabulary - len(names))]
    added = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added["special"] = True
    content = {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": END_TEXT, **added}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {name: number for number, name in enumerate(names)},
            "unk_token": "<|unknown|>",
        },
    }
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_step_at_1024_tokens(ditlab, tmp_path):
    (text := tmp_path / "text").mkdir()
    for number, document in enumerate(python_docs()):
        if number < 60:
            (text / f"{number:02}.txt").write_text(document, encoding="utf-8")
    word_tokenizer(tokenizer := tmp_path / "tokenizer.json", 50_257)
    words = ("--source", text, "--tokenizer", tokenizer, "--name", "text", "--json")
    imported = ditlab("data", "import", "text", *words).ok()
    (store,) = imported.json["stores"]
    changes = [*ONE_STEP, f"data.path={store['path']}"]
    said = ditlab(
        "train", str(SPEC), *(part for change in changes for part in ("--set", change)), "--json"
    ).ok()
    assert said.json["status"] == "finished" and said.json["step"] == 1
    # zero scores are the bound's start, ln V: 10.82; two sequences and one evaluated one tell it
    # within a few nats
    assert said.json["metrics"]["eval/bound"] == pytest.approx(np.log(50_257), abs=3)
