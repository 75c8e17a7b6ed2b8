"""Release of a module from DeepSpeed, in whatever state an exception left it, for the next engine.

Parameters of ZeRO-3 stay partitioned, which the next ZeRO-3 engine expects of them. Touches DeepSpeed's private names;
`tests/ditlab/engine` fails when they move.
"""

from typing import Any

from torch import nn


def release(module: nn.Module) -> None:
    """Drop gradients and DeepSpeed's references, and finish or drop the transfers of an interrupted pass."""
    from deepspeed.runtime.zero import parameter_offload

    # Kept in a global list: without this, the network of every closed ZeRO-3 engine would stay in memory.
    own = set(module.modules())
    parameter_offload.FWD_MODULE_STACK[:] = [each for each in parameter_offload.FWD_MODULE_STACK if each not in own]
    inflight: Any = getattr(module, "ds_inflight_param_registry", None)
    if inflight is not None:
        for handle in list(inflight.values()):
            handle.wait()
        inflight.clear()
    parameter: Any
    for parameter in module.parameters():
        parameter.grad = None
        if hasattr(parameter, "grad_accum"):
            parameter.grad_accum = None
        if hasattr(parameter, "ds_status"):
            parameter.ds_active_sub_modules.clear()
            if parameter.ds_status.name == "AVAILABLE":
                parameter.partition()
