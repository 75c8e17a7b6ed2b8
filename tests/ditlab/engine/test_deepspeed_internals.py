"""DeepSpeed's internals in one file, behind one guard of its version."""

import re
from pathlib import Path

import pytest

from ditlab.engine import deepspeed_internals
from ditlab.engine.deepspeed_internals import check_version, import_deepspeed
from ditlab.errors import UserError

PLATFORM = Path(deepspeed_internals.__file__).parents[1]
HOLDERS = {
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer": (
        "allreduce_and_copy",
        "allreduce_bucket",
        "buffered_reduce_fallback",
        "reduce_ipg_grads",
        "scaled_global_norm",
        "update_lp_params",
    ),
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3": (
        "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
        "_get_norm_groups",
        "_reassign_or_swap_out_partitioned_parameters",
        "checkpoint_event_epilogue",
        "checkpoint_event_prologue",
    ),
    "deepspeed.runtime.engine:DeepSpeedEngine": (
        "_get_gradients_for_reduction",
        "allreduce_and_copy",
        "allreduce_bucket",
        "allreduce_gradients",
    ),
    "deepspeed.runtime.zero.parameter_offload": ("FWD_MODULE_STACK", "ZeROOrderedDict"),
    "deepspeed.runtime.zero.linear": ("zero3_linear_wrap",),
    "deepspeed.comm.comm": ("cdb", "destroy_process_group"),
    "deepspeed.ops": ("__compatible_ops__",),
}
"""Names that the engine uses, by the module or class that holds them."""


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_names_are_there(holder):
    from importlib import import_module

    import_deepspeed()
    module, _, cls = holder.partition(":")
    where = getattr(import_module(module), cls) if cls else import_module(module)
    assert not [name for name in HOLDERS[holder] if not hasattr(where, name)]


@pytest.mark.parametrize("version", ["0.18.4", "1.0.0"])
def test_another_version_is_refused_with_the_remedy(version):
    with pytest.raises(
        UserError,
        match=rf"deepspeed {version} is installed.*pip install 'deepspeed>=0\.19\.8,<0\.20'",
    ):
        check_version(version)


def test_this_version_is_taken():
    check_version(import_deepspeed().__version__)
    check_version("0.19.9+cpu")


def test_no_other_file_uses_them():
    names = {name for each in HOLDERS.values() for name in each if name != "__compatible_ops__"}
    private = re.compile(
        r"\bds_(shape|numel|tensor|status|id)\b|loss_scaler|\.(" + "|".join(sorted(names)) + r")\b"
    )
    found = [
        f"{path.relative_to(PLATFORM)}: {line.strip()}"
        for path in PLATFORM.rglob("*.py")
        if path.name != "deepspeed_internals.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line) and "distributed.destroy_process_group" not in line
    ]
    assert not found
