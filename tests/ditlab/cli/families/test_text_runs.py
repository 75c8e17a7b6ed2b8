"""Commands on a run on text: its tokeniser goes along, samples are text, prompts stay, evaluation
gives bits a byte.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.cli.terminal import escape_for_terminal
from ditlab.data.text.tokenizer import TOKENIZER_NAME, open_tokenizer
from ditlab.reports.text_file import read_texts
from support.command import Said, run_here, run_inside
from support.journals import read_records

TEXT = (
    "It is a truth universally acknowledged, that a test in possession of a small corpus must "
    "be in want of speed. "
)
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
    folder: Path
    run_id: str
    command: Callable[..., Said]

    @property
    def run(self) -> Path:
        return self.folder / "home" / "train" / self.run_id

    def sample(self, *arguments: object) -> Said:
        return self.command("sample", self.run_id, "--num", 3, *arguments, "--json")


def import_and_train(folder: Path, tokenizer: str, vocabulary: int) -> str:
    source = folder / "corpus.txt"
    source.write_text(TEXT * 60, encoding="utf-8")
    learned = ("--vocabulary", vocabulary) if tokenizer == "bpe" else ()
    place = {"home": folder / "home", "cwd": folder}
    given = ("--source", source, "--tokenizer", tokenizer, *learned, "--length", 32)
    imported = run_inside("data", "import", "text", *given, "--name", "letters", "--json", **place)
    (store,) = imported.ok().json["stores"]
    spec = folder / "letters.yaml"
    spec.write_text(SPEC.format(path=store["path"], vocabulary=vocabulary), encoding="utf-8")
    said = run_inside("train", spec, "--local", "--json", **place).ok()
    return str(said.json["run_id"])


TOKENIZERS = [
    pytest.param(("bytes", 256), id="bytes"),
    pytest.param(("bpe", 270), id="bpe", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def folder(request, tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp(request.param[0])
    return folder, import_and_train(folder, *request.param)


@pytest.fixture
def trained(folder, capfd, monkeypatch) -> Trained:
    monkeypatch.setenv("DITLAB_HOME", str(folder[0] / "home"))
    return Trained(*folder, lambda *arguments: run_here(capfd, monkeypatch, *arguments))


def written(said: Said, name: str) -> Path:
    said.ok()
    (file,) = [Path(file) for file in said.json["files"] if Path(file).name == name]
    return file


def test_the_tokeniser_goes_with_the_store_the_run_and_the_export(trained, tmp_path):
    (store,) = (trained.folder / "home" / "stores").glob("letters@*")
    said = trained.command("export", trained.run_id, "--out", tmp_path / "export", "--json")
    assert written(said, TOKENIZER_NAME) == tmp_path / "export" / TOKENIZER_NAME
    places = [store, trained.run, trained.run / "media" / "export", tmp_path / "export"]
    assert len({(place / TOKENIZER_NAME).read_bytes() for place in places}) == 1
    assert open_tokenizer(tmp_path / "export").decode(open_tokenizer(store).encode(TEXT)) == TEXT


def test_evaluations_leave_their_samples_as_text(trained):
    said = (trained.run / "media" / "samples-00000002.txt").read_text(encoding="utf-8")
    assert (
        said.startswith("Samples\n\n--- 1 ---\n") and "How noise becomes the first sample" in said
    )
    journal = read_records(trained.run / "journal.jsonl")
    paths = [entry for entry in journal if re.search(r"samples.*\.txt$", entry.get("path", ""))]
    assert [entry["artifact_path"] for entry in paths] == ["samples", "samples"]


def test_the_first_text_is_shown_before_the_files(trained, tmp_path):
    said = trained.command("sample", trained.run_id, "--num", 3, "--out", tmp_path).ok()
    first, *shown = said.out.splitlines()
    assert first.startswith("text 1 of 3") and shown[0].startswith("  ")
    text = read_texts(tmp_path / "samples.txt")
    assert len(text) == 3
    assert escape_for_terminal(text[0].split("\n")[0].split()[0][:20]) in shown[0]
    assert shown[-3:] == [
        str(tmp_path / name) for name in ("samples.png", "samples.safetensors", "samples.txt")
    ]
    assert "3 samples of step 2: " in said.err and ", 1 thread" in said.err
    assert len(read_texts(trained.run / "media" / "samples-00000002.txt")) == 2


def test_samples_are_decoded_by_the_runs_own_tokeniser_alone(trained, monkeypatch):
    """The store may be gone: everything that sampling needs lies in the run's folder."""
    (store,) = (trained.folder / "home" / "stores").glob("letters@*")
    store.rename(trained.folder / "gone")
    try:
        said = trained.sample()
        tokens = load_file(written(said, "samples.safetensors"))["values"]
        read = written(said, "samples.txt").read_text(encoding="utf-8")
    finally:
        (trained.folder / "gone").rename(store)
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
    said = trained.command("evaluate", trained.run_id, "--json").ok()
    metrics = said.json["metrics"]
    (store,) = (trained.folder / "home" / "stores").glob("letters@*")
    text = json.loads((store / "store.json").read_text())["text"]
    bits = metrics["held_out/bound"] / math.log(2)
    assert metrics["held_out/bits_per_token"] == pytest.approx(bits)
    assert metrics["held_out/bits_per_byte"] == pytest.approx(bits * text["tokens"] / text["bytes"])
    assert metrics["held_out/perplexity"] == pytest.approx(math.exp(metrics["held_out/bound"]))
    assert any(name.startswith("assessed/") and "bigram" in name for name in metrics)


def test_a_model_without_text_refuses_prompts(finished, capfd, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    said = run_here(capfd, monkeypatch, "sample", finished.run_id, "--prompt", "seven")
    said.refused("prompt='seven' was given to a model without text; leave the prompt out")


def test_runs_and_exports_give_texts_in_python(trained, tmp_path):
    run = ditlab.open_run(trained.run_id)
    drawn = run.sample(2, prompts=["It is"], steps=2)
    assert len(drawn.texts) == 2 and drawn.images == [] and drawn.values.shape == (2, 32)
    model = ditlab.load_export(run.export(tmp_path / "export").folder, device="cpu")
    assert model.text is not None and model.text.decode(drawn.values[0].tolist()).startswith(
        "It is"
    )
