"""Commands on a run on text: its tokeniser goes along, samples are text, prompts stay, evaluation
gives bits a byte.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.cli.terminal import escape_for_terminal
from ditlab.data.text.tokenizer import TOKENIZER_NAME, open_tokenizer
from ditlab.reports.text_file import read_texts
from support.command import run_inside
from support.journals import read_records

TEXT = "It is a truth universally acknowledged, that a test in possession of a small corpus must be in want of speed. "
SPEC = """\
name: letters
model: {{family: dlm, length: 32, vocabulary: {vocabulary}, width: 16, depth: 1, num_heads: 2, condition_width: 8,
  time_width: 8}}
data: {{kind: arrow, path: {path}, hold_out: 0.2}}
batch: {{size: 8}}
training: {{steps: 2}}
checkpoint: {{every: 2}}
evaluation: {{every: 2, samples: 2, limit: 8}}
sampling: {{steps: 3}}
tracking: {{system_metrics: false}}
"""


@dataclass(frozen=True)
class Trained:
    """A folder with a corpus, its store and a run on it."""

    folder: Path

    @property
    def home(self):
        return self.folder / "home"

    @property
    def run(self):
        (run,) = self.home.glob("train/*")
        return run

    @property
    def store(self):
        (store,) = self.home.glob("stores/letters@*")
        return store

    def command(self, *words):
        return run_inside(*words, home=self.home, cwd=self.folder)

    def sample(self, *words):
        return self.command("sample", "letters", "--num", 3, *words, "--json")


TOKENIZERS = [
    pytest.param(("bytes", 256), id="bytes"),
    pytest.param(("bpe", 270), id="bpe", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def trained(request, tmp_path_factory):
    tokenizer, vocabulary = request.param
    made = Trained(tmp_path_factory.mktemp(tokenizer))
    (made.folder / "corpus.txt").write_text(TEXT * 60)
    learned = ("--vocabulary", vocabulary) if tokenizer == "bpe" else ()
    words = ("--source", "corpus.txt", "--tokenizer", tokenizer, *learned, "--length", 32)
    made.command("data", "import", "text", *words, "--name", "letters").ok()
    spec = made.folder / "letters.yaml"
    spec.write_text(SPEC.format(path=made.store, vocabulary=vocabulary))
    made.command("train", spec, "--local").ok()
    return made


def written(said, name):
    said.ok()
    (file,) = [Path(file) for file in said.json["files"] if Path(file).name == name]
    return file


def test_the_tokeniser_goes_with_the_store_the_run_and_the_export(trained, tmp_path):
    store = trained.store
    said = trained.command("export", "letters", "--out", tmp_path / "export", "--json")
    assert written(said, TOKENIZER_NAME) == tmp_path / "export" / TOKENIZER_NAME
    places = [store, trained.run, trained.run / "media" / "export", tmp_path / "export"]
    assert len({(place / TOKENIZER_NAME).read_bytes() for place in places}) == 1
    assert open_tokenizer(tmp_path / "export").decode(open_tokenizer(store).encode(TEXT)) == TEXT


def test_evaluations_leave_their_samples_as_text(trained):
    file = trained.run / "media" / "samples-00000002.txt"
    said = file.read_text()
    assert said.startswith("Samples\n\n--- 1 ---\n") and len(read_texts(file)) == 2
    assert "How noise becomes the first sample" in said
    journal = read_records(trained.run / "journal.jsonl")
    paths = [entry for entry in journal if re.search(r"samples.*\.txt$", entry.get("path", ""))]
    assert [entry["artifact_path"] for entry in paths] == ["samples", "samples"]


def test_the_first_text_is_shown_before_the_files(trained, tmp_path):
    said = trained.command("sample", "letters", "--num", 3, "--out", tmp_path).ok()
    first, *shown = said.out.splitlines()
    assert first.startswith("text 1 of 3") and shown[0].startswith("  ")
    text = read_texts(tmp_path / "samples.txt")
    assert len(text) == 3
    assert escape_for_terminal(text[0].split("\n")[0].split()[0][:20]) in shown[0]
    names = ("samples.png", "samples.safetensors", "samples.txt")
    assert shown[-3:] == [str(tmp_path / name) for name in names]
    assert "3 samples of step 2: " in said.err and ", 1 thread" in said.err


def test_samples_are_decoded_by_the_runs_own_tokeniser_alone(trained):
    """The store may be gone: everything that sampling needs lies in the run's folder."""
    store = trained.store
    store.rename(trained.folder / "gone")
    try:
        said = trained.sample()
    finally:
        (trained.folder / "gone").rename(store)
    tokens = load_file(written(said, "samples.safetensors"))["values"]
    read = written(said, "samples.txt").read_text()
    assert tokens.shape == (3, 32) and tokens.dtype == torch.int64
    tokenizer = open_tokenizer(trained.run)
    for row in tokens:
        assert tokenizer.decode(row.tolist()) in read


def test_prompts_stay_where_they_were_put(trained):
    tokenizer = open_tokenizer(trained.run)
    said = trained.sample("--prompt", "It is", "--prompt-at", "-6", "speed.")
    tokens = load_file(written(said, "samples.safetensors"))["values"]
    start, end = tokenizer.encode("It is"), tokenizer.encode("speed.")
    assert tokens[:, : len(start)].tolist() == [start] * 3
    assert tokens[:, 26 : 26 + len(end)].tolist() == [end] * 3
    free = load_file(written(trained.sample(), "samples.safetensors"))["values"]
    assert not torch.equal(free, tokens)  # and did not overwrite each other's files


def test_evaluation_gives_bits_a_byte_beside_baselines(trained):
    metrics = trained.command("evaluate", "letters", "--json").ok().json["metrics"]
    text = json.loads((trained.store / "store.json").read_text())["text"]
    bits = metrics["held_out/bound"] / math.log(2)
    assert metrics["held_out/bits_per_token"] == pytest.approx(bits)
    assert metrics["held_out/bits_per_byte"] == pytest.approx(bits * text["tokens"] / text["bytes"])
    assert metrics["held_out/perplexity"] == pytest.approx(math.exp(metrics["held_out/bound"]))
    assert any(name.startswith("assessed/") and "bigram" in name for name in metrics)


def test_a_model_without_text_refuses_prompts(with_run):
    said = with_run("sample", "small", "--prompt", "seven")
    said.refused("prompt='seven' was given to a model without text; leave the prompt out")


def test_runs_and_exports_give_texts_in_python(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(trained.home))
    run = ditlab.open_run("letters")
    drawn = run.sample(2, prompts=["It is"], steps=2)
    assert len(drawn.texts) == 2 and drawn.images == [] and drawn.values.shape == (2, 32)
    model = ditlab.load_export(run.export(tmp_path / "export").folder, device="cpu")
    assert model.text is not None
    assert model.text.decode(drawn.values[0].tolist()).startswith("It is")
