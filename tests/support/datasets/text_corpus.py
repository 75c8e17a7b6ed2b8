"""Small corpus as files of each kind, and its tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.stores.store import Store
from ditlab.data.text.tokenizer import ByteTokenizer, Tokenizer

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "Ünïcödé",
    "—",
    "don't",
    "42",
    "x_y",
    "end.\nNext",
    "\n",
    "\n\n",
    "  ",
]


EACH_KIND = pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
"""Kinds of files, for a test of each."""


def prose(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


DOCUMENTS = [prose(words, seed) for seed, words in enumerate((50, 1, 400, 7, 120))]


def write_corpus(
    path: Path, kind: str, texts: Sequence[str] = DOCUMENTS, column: str = "text"
) -> Path:
    """Write documents as a folder of .txt files, or as a file of another kind."""
    if kind == "txt":
        for number, text in enumerate(texts):
            file = path / f"part-{number // 2}" / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        return path
    file = path.with_suffix(f".{kind}")
    if kind == "jsonl":
        lines = [
            json.dumps({"id": 1, column: text}, ensure_ascii=number % 2 == 0)
            for number, text in enumerate(texts)
        ]
        file.write_bytes("\n".join(lines).encode())
    else:
        table = pa.table({"id": range(len(texts)), column: pa.array(texts)})
        pq.write_table(table, file, row_group_size=2)
    return file


def stream(texts: Sequence[str], tokenizer: Tokenizer | None = None) -> list[int]:
    """Return the tokens of documents, an end token behind each."""
    tokenizer = tokenizer or ByteTokenizer()
    return [token for text in texts for token in (*tokenizer.encode(text), tokenizer.end)]


def stored(store: Store) -> list[int]:
    """Return the tokens of a store, row after row."""
    tokens: list[int] = store.tensor("tokens").numpy().reshape(-1).tolist()
    return tokens
