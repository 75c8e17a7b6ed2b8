"""Help and schemas say why they lack texts where Python drops docstrings."""

import pytest

from ditlab.cli.main import missing_texts


@pytest.mark.parametrize(
    "arguments, optimize, is_said",
    [
        ((), 2, True),
        (("--help",), 2, True),
        (("data", "import", "images", "--help"), 2, True),
        (("schema", "--result", "train", "--json"), 2, True),
        (("train", "spec.yaml"), 2, False),
        (("--help",), 1, False),
        (("schema",), 0, False),
    ],
)
def test_texts_that_python_dropped(arguments, optimize, is_said):
    assert ("PYTHONOPTIMIZE=2" in missing_texts(arguments, optimize)) == is_said
