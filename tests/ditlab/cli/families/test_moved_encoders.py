"""A finished run whose frozen encoders lie elsewhere than where it trained."""

import pytest

from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder

SPEC = """\
name: painter
model:
  {family: pixelhdm, width: 32, pixel_width: 4, patch_size: 8, patch_depth: 1, pixel_depth: 1, num_heads: 2,
   num_kv_heads: 1, bottleneck_width: 8, time_width: 8, max_resolution: 64, mrope_widths: [4, 6, 6], text_length: 24}
objective: {weights: {velocity: 1.0, frequency: 0.0, alignment: 0.5}, alignment_block: 1, alignment_width: 24}
encoders: {text: encoders/text, image: encoders/image}
data: {kind: captioned_digits, colours: 1}
batch: {size: 8}
training: {steps: 1}
evaluation: {every: null}
sampling: {steps: 1, height: 16, width: 16, guidance: 2.0}
tracking: {system_metrics: false}
"""


@pytest.mark.slow
def test_a_run_is_sampled_and_evaluated_with_its_encoders_in_another_place(
    tmp_path, ditlab, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_text_encoder(tmp_path / "encoders" / "text", width=32)
    write_image_encoder(tmp_path / "encoders" / "image", width=24, patch=8)
    (tmp_path / "painter.yaml").write_text(SPEC)
    ditlab("train", "painter.yaml", "--local").ok()
    evaluate = ("evaluate", "painter", "--rows", "8", "--json")
    before = ditlab(*evaluate)
    (tmp_path / "encoders").rename(tmp_path / "moved")
    refused = ditlab(*evaluate)
    assert refused.code == 2 and "encoders.text=" in refused.err and "Traceback" not in refused.err
    there = ("--set", "encoders.text=moved/text", "--set", "encoders.image=moved/image")
    after = ditlab(*evaluate, *there)
    assert after.json["metrics"] == before.json["metrics"]
    assert "not added to the run" in " ".join(after.err.split())
    ditlab("sample", "painter", "--prompt", "a red two", "--num", "1", *there).ok()
