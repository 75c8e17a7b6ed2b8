"""Where code asks for the kind of device: the fewer such places, the more of what runs on a GPU is
tested without.
"""

import re
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
ASKS = re.compile(r"\.is_cuda\b|\bdevice\.type\b|\bcuda\.is_available\(|\bdevice_count\(")
BRANCHES = {
    "models/ditlab_models/dlm/network.py": 1,  # FlexAttention on a GPU, a dense mask elsewhere
    # autocast is by device type, and the meta device has none
    "models/ditlab_models/tensors.py": 2,
    # one kernel on a GPU, larger chunks, rows at multiples of 16 bytes
    "models/ditlab_models/processes/score_entropy.py": 3,
    # a digest names the kind of device; threads of a CPU
    "platform/ditlab/analysis/saved_evaluation.py": 2,
    # kernels are profiled in place of operators; a measurement waits
    "platform/ditlab_addons/plan/profiling.py": 3,
    "platform/ditlab/analysis/opened_run.py": 2,  # samples are drawn on a GPU if there is one
    # a file trains on a GPU where there is one; Muon iterates in bfloat16 there
    "platform/ditlab_addons/check/eject/trainer.py": 2,
    "platform/ditlab_addons/check/prove/proving.py": 1,  # a spec for GPUs is proved on them
    # other kernels on a GPU, which sum in any order: other bounds
    "platform/ditlab_addons/check/prove/steps.py": 1,
    # a run on GPUs is replayed on one: a CPU draws other noise
    "platform/ditlab_addons/check/replay/replaying.py": 1,
    # numbers that NumPy cannot view are copied to the host
    "platform/ditlab/checkpoints/shard.py": 1,
    "platform/ditlab/checkpoints/saving.py": 2,  # pinned memory and asynchronous copies
    # bytes are mapped onto a range by NumPy, which starts no threads
    "platform/ditlab/data/loading/batches.py": 1,
    "platform/ditlab/data/loading/loader.py": 1,  # pinned memory
    # rows are copied from pinned memory, on a stream of their own
    "platform/ditlab/data/loading/transfer.py": 2,
    "platform/ditlab_addons/doctor/machine.py": 1,  # the doctor lists GPUs
    "platform/ditlab/encoders/cache.py": 1,  # padding costs a CPU more than it saves
    # passes over graphs for the CPU's products, constant sizes on a GPU
    "platform/ditlab/engine/compilation.py": 1,
    # the worker's GPU; control messages that no GPU waits for
    "platform/ditlab/engine/distributed.py": 2,
    "platform/ditlab/analysis/drawing.py": 1,  # kept memory and threads on a CPU
    # compile: auto, kept memory on a CPU, parameters aligned on a GPU (so laid out again), DeepSpeed's settings
    "platform/ditlab/engine/engine.py": 7,
    # Muon's iteration in bfloat16, slow on a CPU
    "platform/ditlab_addons/optimizers/muon_update.py": 1,
    "platform/ditlab/engine/phase_clock.py": 1,  # events in place of the host's clock
    "platform/ditlab/engine/memory.py": 1,  # pinned memory
    # figures of a large network would take a CPU too long
    "platform/ditlab/api/final_figures.py": 1,
    "platform/ditlab_addons/plan/functions.py": 2,  # a plan or a profile is for this machine's GPU
    "platform/ditlab_addons/plan/pass_memory.py": 1,  # tensors of one device are counted
    # the largest product by device type, and a measurement waits for the GPU
    "platform/ditlab/inputs/flops.py": 2,
    # a digest of a measurement names the kind of device
    "platform/ditlab/quality/sample_quality.py": 1,
    # features of a CPU are not kept for a GPU
    "platform/ditlab_addons/figures/images/published.py": 1,
    "platform/ditlab/runs/cores.py": 1,  # threads beside other processes matter on a CPU alone
    # a GPU beside those of the workers; fp16 needs one
    "platform/ditlab/runs/evaluator_process.py": 2,
    "platform/ditlab/runs/prepare.py": 1,  # a run without its GPUs is refused before it starts
    "platform/ditlab/sweeps/prepare.py": 1,  # trials at once, by the machine's GPUs
    # `engine.compile: auto` is a function of the device type
    "platform/ditlab/training/checkpointing.py": 1,
    # a digest of a measurement names the kind of device; convolutions
    "platform/ditlab/training/evaluation.py": 2,
    # numbers of a step are copied asynchronously, and read later
    "platform/ditlab/training/metrics.py": 1,
    # a receipt names the device and the blocks' numbers
    "platform/ditlab/training/receipts.py": 3,
    "platform/ditlab/training/timing.py": 1,  # peak memory of the device, or of the process
}
"""Places by file, and what the two paths differ in. A new one belongs where none of these serves."""


def test_code_asks_for_the_device_where_the_list_says():
    found = Counter()
    for root in ("models/ditlab_models", "platform/ditlab", "platform/ditlab_addons"):
        for path in (CHECKOUT / root).rglob("*.py"):
            for line in path.read_text().splitlines():
                if ASKS.search(line):
                    found[path.relative_to(CHECKOUT).as_posix()] += 1
    assert found == BRANCHES
