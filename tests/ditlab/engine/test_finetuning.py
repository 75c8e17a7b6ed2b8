"""Frozen parameters, LoRA and learning rates by pattern under ZeRO against the reference; exact
resume; compilation.
"""

import pytest
import torch

from ditlab_models.layers.lora import A
from support.marks import slow
from support.trainings.engines import Job, drive_here, drive_workers, module_for, steps_of
from support.trainings.grouped import (
    SCRIPT,
    SPLIT,
    assert_close,
    reference_training,
    resumed,
    small,
)

LORA = {"rank": 3, "alpha": 6.0, "targets": ["blocks.*.attention.*", "*.mlp"]}


def tuned(stage=0, precision="fp32", freeze=None, lora=LORA, **fields):
    experiment = small(stage, precision=precision, **{"lr_patterns": {"*.lora_B": 4.0}, **fields})
    return experiment.replace("training", {"freeze": freeze, "lora": lora})


CASES = {
    "lora": {},
    "lora and a head": {
        "freeze": ["blocks.*", "*embedding*"],
        "lr_patterns": {"head*": 3.0, "*.bias": 0.5},
    },
    "frozen": {"freeze": ["blocks.0", "*.bias"], "lora": None, "lr_patterns": {}},
    "muon": {"freeze": ["blocks.*.mlp.*"], "kind": "muon", "adamw_lr": 2e-3},
}


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
@pytest.mark.parametrize("case", CASES)
def test_one_worker_trains_the_weights_of_the_reference(case, stage):
    experiment = tuned(stage, **CASES[case])
    module = module_for(experiment)
    start = dict(module.named_parameters())
    assert any(name.endswith(A) for name in start) == (case != "frozen")
    state = drive_here(Job(experiment, SCRIPT)).state
    assert_close(state, reference_training(tuned(**CASES[case]), SCRIPT))
    frozen = {name for name, each in start.items() if not each.requires_grad}
    assert frozen and frozen == {owner for field, owner in state.tensors if field == "frozen"}
    for name in frozen:
        assert ("master", name) not in state.tensors
        assert torch.equal(state.tensors["frozen", name], start[name].detach().view(-1)), name


@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_adapters_have_float32_masters_and_the_base_stays_in_bf16(stage):
    state = drive_here(Job(tuned(stage, precision="bf16"), SCRIPT)).state
    expected = reference_training(tuned(), SCRIPT)
    start = dict(module_for(tuned()).named_parameters())
    for (field, name), values in state.tensors.items():
        assert values.dtype == (torch.bfloat16 if field == "frozen" else torch.float32)
        if field == "master":
            due = expected[name].view(-1)
            assert (values - due).norm() < 0.2 * (due - start[name].detach().view(-1)).norm(), name


@pytest.mark.parametrize(
    "changes",
    [
        {"engine.activation_checkpointing": True},
        {"engine.activation_offload": "cpu"},
        *slow(
            {"engine.compile": True},
            {"engine.compile": True, "engine.activation_checkpointing": True},
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("stage", [1, 3])
def test_memory_and_compilation_change_no_number(stage, changes):
    """The first block has no adapters, so that no gradient reaches its inputs: two kinds of block
    to compile.
    """
    lora = {**LORA, "targets": ["blocks.1.*"]}
    plain = tuned(stage, lora=lora).replace("model.depth", 2)
    found = drive_here(Job(plain.replace_all(changes), SCRIPT)).state
    assert_close(found, reference_training(plain, SCRIPT))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(2,), (0, 1, 3)], ids=str)
def test_two_workers_train_the_same_weights_and_resume_bit_for_bit(stages, tmp_path):
    expected = reference_training(tuned(), SCRIPT)
    for trace in drive_workers([Job(tuned(stage), SPLIT) for stage in stages], 2):
        assert_close(trace.state, expected)
    experiments = [tuned(stage) for stage in stages]
    experiments += [tuned(stage, precision="bf16") for stage in stages if stage]
    for unbroken, rest in resumed(experiments, 2, tmp_path):
        assert rest.state.equals(unbroken.state)


@pytest.mark.parametrize(
    "offload", [{"offload": "cpu"}, {"offload": "cpu", "offload_parameters": "cpu"}], ids=str
)
def test_offloaded_state(offload):
    experiment = tuned(3).replace("engine.zero", offload)
    assert_close(drive_here(Job(experiment, SCRIPT)).state, reference_training(tuned(), SCRIPT))


def test_a_base_checkpoint_fits_the_adapted_network_and_a_state_moves_to_any_stage(tmp_path):
    base = module_for(small(0)).network.state_dict()
    adapted = module_for(tuned()).network
    missing, unexpected = adapted.load_state_dict(base, strict=False)
    assert not unexpected and missing and all("lora_" in name for name in missing)
    unbroken = drive_here(Job(tuned(0), steps_of())).state
    drive_here(Job(tuned(3), steps_of(numbers=range(2)), save=tmp_path / "half"))
    moved = drive_here(Job(tuned(0), steps_of(numbers=range(2, 4)), load=tmp_path / "half")).state
    torch.testing.assert_close(moved.tensors, unbroken.tensors, rtol=1e-4, atol=1e-5)
