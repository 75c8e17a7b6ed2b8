"""Frozen parameters, LoRA and learning rates by pattern under ZeRO against the reference; exact resume; compilation."""

import pytest
import torch

from denoisers.layers.lora import A
from support.trainings.engines import Job, Pass, Step, drive_here, drive_workers, module_for
from support.trainings.grouped import SCRIPT, assert_close, reference_training, small

STAGES = (0, 1, 2, 3)
SPLIT = [Step([[one], [two]]) for one, two in (step.passes[0] for step in SCRIPT)]
LORA = {"rank": 3, "alpha": 6.0, "targets": ["blocks.*.attention.*", "*.mlp"]}


def tuned(stage=0, precision="fp32", freeze=None, lora=LORA, **fields):
    experiment = small(stage, precision=precision, **{"lr_patterns": {"*.lora_B": 4.0}, **fields})
    return experiment.replace("training", {"freeze": freeze, "lora": lora})


CASES = {
    "lora": {},
    "lora and a head": {"freeze": ["blocks.*", "*embedding*"], "lr_patterns": {"head*": 3.0, "*.bias": 0.5}},
    "frozen": {"freeze": ["blocks.0", "*.bias"], "lora": None, "lr_patterns": {}},
    "muon": {"freeze": ["blocks.*.mlp.*"], "kind": "muon", "adamw_lr": 2e-3},
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", CASES)
def test_one_worker_trains_the_weights_of_the_reference(case, stage):
    experiment = tuned(stage, **CASES[case])
    module = module_for(experiment)
    frozen = {name for name, each in module.named_parameters() if not each.requires_grad}
    assert frozen and any(name.endswith(A) for name, _ in module.named_parameters()) == (case != "frozen")
    trace = drive_here(Job(experiment, SCRIPT))
    assert_close(trace.state, reference_training(tuned(**CASES[case]), SCRIPT))
    for name, start in module.named_parameters():
        fields = {field for field, owner in trace.state.tensors if owner == name}
        assert (fields == {"frozen"}) == (name in frozen), name
        if name in frozen:
            assert torch.equal(trace.state.tensors["frozen", name], start.detach().view(-1)), name
