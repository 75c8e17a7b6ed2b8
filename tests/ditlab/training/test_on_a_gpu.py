"""Training on a GPU: exact resume, and steps for which the host does not wait. Skipped without
one.
"""

import pytest
import torch

from ditlab.training.stepping import Stepper
from support.trainings.family_specs import BLOCKS
from support.trainings.workers import resumed_exactly, tiny, train_here

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
FAMILIES = {
    "dit": {},
    "unet": {
        "model": {"family": "unet", "image_size": 8, "channels": 1, "width": 16, "time_width": 16}
    },
    "region": {
        "model": {
            "family": "region",
            "num_features": 8,
            "num_regions": 32,
            "width": 32,
            "depth": 2,
            "num_heads": 2,
        },
        "data": {"kind": "motifs", "motifs": 7, "regions": 32, "chromosomes": 4, "peaks": 1000},
    },
    "dlm": {
        **BLOCKS,
        "model": {**BLOCKS["model"], "length": 512, "width": 64},
        "data": {**BLOCKS["data"], "length": 512},
    },
}


def spec_of(family, **changes):
    return tiny(
        resources__workers=1, resources__gpus_per_worker=1, **{**FAMILIES[family], **changes}
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_in_the_bits_of_one_that_was_not_stopped(family, precision, tmp_path):
    spec = spec_of(family, training__precision=precision)
    resumed_exactly(spec, tmp_path, tmp_path, 3, use_gpu=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_waits_for_no_pass_of_a_step(family, tmp_path, monkeypatch):
    """From the third step on: kernels are chosen and pinned memory is taken in the first."""
    accumulating, steps = Stepper._accumulate, []

    def watched(self, *of):
        steps.append(self.state.step)
        torch.cuda.set_sync_debug_mode("error" if len(steps) > 2 else "default")
        try:
            return accumulating(self, *of)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Stepper, "_accumulate", watched)
    train_here(
        spec_of(family, engine={"zero": {"stage": 1}, "compile": False}),
        tmp_path,
        tmp_path / "run",
        use_gpu=True,
    )
    assert steps == [*range(6)]
