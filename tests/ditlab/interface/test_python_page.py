"""The code of docs/python.md and of the README's script runs as it stands."""

import re
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """A working directory with the digits' experiment, in smaller batches and evaluations, and a home of its own."""
    place = Path("experiments/digits/dit.yaml")
    spec = (CHECKOUT / place).read_text(encoding="utf-8")
    for number, smaller in (("batch: {size: 128}", "batch: {size: 32}"), ("samples: 64}", "samples: 16, limit: 32}")):
        assert number in spec
        spec = spec.replace(number, smaller)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(spec, encoding="utf-8")
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code_of(page: str) -> list[str]:
    """The Python of a page, block by block."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return [textwrap.dedent(block) for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def run(blocks: list[str], name: str) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, block {number + 1}", "exec"), namespace)
    return namespace


def assert_nothing_else(workplace: Path) -> None:
    """Assert that a checkout, where git ignores runs/, is left as it was."""
    assert {path.name for path in workplace.iterdir()} <= {"experiments", "home", "runs"}


@pytest.mark.slow
def test_the_python_page_runs(workplace, capsys):
    found = run(code_of("docs/python.md"), "docs/python.md")
    assert "model.dpeth=6: model.family=dit has no field 'dpeth'; did you mean 'depth'?" in capsys.readouterr().out
    assert found["drawn"].values.shape == (16, 1, 8, 8)
    for file in (
        "loss.png",
        "samples/samples.png",
        "comparison/comparison.html",
        "exported/weights.safetensors",
        "step-18",
    ):
        assert (workplace / "runs" / file).stat().st_size > 0, file
    assert_nothing_else(workplace)


def test_the_readme_s_script_runs(workplace):
    (script,) = code_of("README.md")
    assert len(script.splitlines()) <= 20
    run([script], "README.md")
    for file in ("loss.png", "samples/samples.png"):
        assert (workplace / "runs" / file).stat().st_size > 0, file
    assert_nothing_else(workplace)
