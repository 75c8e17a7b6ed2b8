"""DeepSpeed's internals in one file, behind one guard of its version."""

import re
from pathlib import Path

import pytest

from ditlab.engine import deepspeed_internals
from ditlab.engine.deepspeed_internals import check_version, import_deepspeed
from support.damage import refused

PLATFORM = Path(deepspeed_internals.__file__).parents[1]
NAMES = [
    "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
    "_get_gradients_for_reduction",
    "_get_norm_groups",
    "_reassign_or_swap_out_partitioned_parameters",
    "FWD_MODULE_STACK",
    "ZeROOrderedDict",
    "allreduce_and_copy",
    "allreduce_bucket",
    "allreduce_gradients",
    "buffered_reduce_fallback",
    "cdb",
    "checkpoint_event_epilogue",
    "checkpoint_event_prologue",
    "destroy_process_group",
    "reduce_ipg_grads",
    "scaled_global_norm",
    "update_lp_params",
    "zero3_linear_wrap",
]
"""Names of DeepSpeed's that the engine uses."""


@pytest.mark.parametrize("version", ["0.18.4", "1.0.0"])
def test_another_version_is_refused_with_the_remedy(version):
    with refused(rf"deepspeed {version} is installed.*pip install 'deepspeed>=0\.19\.8,<0\.20'"):
        check_version(version)


def test_this_version_is_taken():
    check_version(import_deepspeed().__version__)
    check_version("0.19.9+cpu")


def test_no_other_file_uses_them():
    private = re.compile(
        r"\bds_(shape|numel|tensor|status|id)\b|loss_scaler|\.(" + "|".join(NAMES) + r")\b"
    )
    found = [
        f"{path.relative_to(PLATFORM)}: {line.strip()}"
        for path in PLATFORM.rglob("*.py")
        if path.name != "deepspeed_internals.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line) and "distributed.destroy_process_group" not in line
    ]
    assert not found
