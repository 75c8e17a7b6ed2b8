"""`ditlab data inspect SPEC`: the parts of a mixture."""

import pytest

from support.command import run_inside

SPEC = """
name: both
model: {family: dit, image_size: 8, channels: 3, patch_size: 4, width: 16, depth: 1, num_heads: 2}
data:
  kind: mixture
  parts: {one: {kind: captioned_digits, size: 8, colours: 1}, two: {kind: captioned_digits, size: 8, colours: 2}}
  weights: {one: 3, two: 1}
batch: {size: 8}
training: {steps: 100}
"""


@pytest.mark.slow
def test_parts_are_shown_with_shares_samples_and_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "both.yaml").write_text(SPEC)
    said = run_inside("data", "inspect", tmp_path / "both.yaml", home=tmp_path / "home", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "drawn by sample" in said.out and "0.75" in said.out and max(map(len, said.out.splitlines())) <= 80
    facts = run_inside("data", "inspect", tmp_path / "both.yaml", "--json", home=tmp_path / "home", cwd=tmp_path).json
    assert facts["draw"] == "sample" and list(facts["parts"]) == ["one", "two"]
    assert facts["parts"]["one"]["share"] == 0.75 and facts["parts"]["one"]["train"] == 1617
    assert facts["parts"]["one"]["passes"] == pytest.approx(0.75 * 800 / 1617)
    assert facts["columns"]["image"] == {"shape": [3, 8, 8], "dtype": "uint8"}
    assert facts["problems"]["colour"].startswith("data.parts.two holds colour with num_classes=2, data.parts.one with")
