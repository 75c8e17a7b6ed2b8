"""Pages that teach, followed: their files are written, their commands run in order, in one home,
with fewer steps.

A training gets `--quick` and a few more settings, under the name that the page gives it, in one
process; a sweep two short trials. Everything else runs as it stands.
"""

import re
import runpy
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ditlab import load
from ditlab.home import Home
from support.command import run_inside
from support.documents import CHECKOUT, FOLLOWED, DocumentedCommand, documented_commands
from support.installed_package import install

SMALL = (
    "training.epochs=null",
    "training.steps=3",
    "evaluation.limit=16",
    "evaluation.samples=2",
    "batch.size=8",
    "tracking.system_metrics=false",
    "tracking.uri=http://127.0.0.1:9",  # nothing answers there: the journal keeps all
)


MISTAKE = "model.dpeth=6"
"""A setting of a command that docs/specs.md shows as a mistake."""


@dataclass
class PageReader:
    """A folder with the files of a page, its home, and what its commands have made."""

    folder: Path
    home: Path
    runs: list[str] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)

    def follow(self, command):
        """Run a command of the page; None for one that is no command of DiTLab's."""
        if command.words[0] == "python":
            runpy.run_path(str(self.folder / command.words[1]))
            return None
        if command.words[0] != "ditlab":
            return None
        words = [self._known(word) for word in command.words[1:]]
        if words[0] == "replay":
            words[words.index("--step") + 1] = "3"  # the last one of a short training
        said = run_inside(*words, *self._shorter(words), home=self.home, cwd=self.folder)
        if MISTAKE in words:
            assert said.code == 2
            return None
        assert said.code == 0, f"{command}: {said.err}"
        records = Home(self.home).runs.glob("*/run.json")
        for record in sorted(records, key=lambda path: path.stat().st_mtime):
            kind = self.sweeps if (record.parent / "sweep.yaml").is_file() else self.runs
            if record.parent.name not in kind:
                kind.append(record.parent.name)
        return said

    def _known(self, word):
        """Put the newest run, or sweep, in its placeholder's place."""
        if word == "RUN":
            return self.runs[-1]
        return word.replace("SWEEP_ID", self.sweeps[-1]) if "SWEEP_ID" in word else word

    def _shorter(self, words):
        """Options that make a training or a sweep small."""
        if words[0] == "tune" and "--dry-run" not in words and "--resume" not in words:
            return ["--quick"] if "--quick" not in words else []
        if words[0] == "sample" and "--num" not in words:
            return ["--num", "2"]
        if words[0] != "train" or MISTAKE in words:
            return []
        given = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
        name = load(self.folder / words[1], given).name
        named = [] if "--quick" in words else ["--quick", "--set", f"name={name}"]
        paths = [each.partition("=")[0] for each in given]
        one_process = ["--local"] * ("--local" not in words)
        settings = [
            each
            for each in SMALL
            if each.startswith("training.steps") or each.partition("=")[0] not in paths
        ]
        if "resources.workers=2" in given:
            settings.append("resources.workers=1")
        if "resume" in " ".join(words):
            named = ["--quick"]
        return [*named, *one_process, *(part for each in settings for part in ("--set", each))]


def files_of(text):
    """Files of a page: a line with a path in code marks, then a block."""
    return dict(
        re.findall(r"^`([\w./-]+\.\w+)`\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    )


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A reader with the repository's experiments, a text, and pictures by class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(CHECKOUT / "experiments")
    pages = sorted((CHECKOUT / "docs").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages)[:40_000]
    (tmp_path / "book.txt").write_text(text)
    return PageReader(tmp_path, tmp_path / "runs")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_can_be_followed(reader, page, monkeypatch):
    text = (CHECKOUT / page).read_text()
    files = files_of(text)
    for name, content in files.items():
        path = reader.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("range(400)", "range(60)"))
    if "pyproject.toml" in files:
        install(reader.folder / "site", files)
        monkeypatch.syspath_prepend(reader.folder / "site")
        # for the processes of a sweep
        monkeypatch.setenv("PYTHONPATH", str(reader.folder / "site"))
    if page == "docs/tutorials/pictures.md":
        runpy.run_path(str(reader.folder / "shapes.py"))
    if page == "docs/data.md":
        make_pets(reader.folder / "pets")
    if page == "docs/sweeps.md":
        (reader.folder / "dit.yaml").symlink_to(CHECKOUT / "experiments" / "digits" / "dit.yaml")
    for line in FOLLOWED[page]:
        reader.follow(DocumentedCommand(page, line, None))
    commands = [each for each in documented_commands(CHECKOUT / page) if each.reason is None]
    said = [reader.follow(command) for command in commands]
    assert len(said) - said.count(None) >= 2


def make_pets(folder):
    """Pictures of two classes, large enough for the page's size."""
    from PIL import Image

    for name, colour in (("cat", "orange"), ("dog", "brown")):
        (folder / name).mkdir(parents=True)
        for number in range(40):
            Image.new("RGB", (80, 70 + number % 5), colour).save(folder / name / f"{number}.jpg")


@pytest.mark.slow
def test_the_table_of_the_quality_page_is_printed_by_its_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    text = (CHECKOUT / "docs" / "quality.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/quality.md", "exec"), {"__name__": "__main__"})
    printed = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 10
    assert all(f"| {name} |" in text for name in printed)
