"""Gives a module back after DeepSpeed, in whatever state an exception left it, so that another engine can take it.

Parameters of ZeRO-3 stay partitioned, which the next ZeRO-3 engine expects of them. Touches DeepSpeed's private names;
`tests/ditlab/engine` fails when they move.
"""

from typing import Any

from torch import nn


def release(module: nn.Module) -> None:
    """Forgets gradients, and everything that a forward or backward pass cut short had under way."""
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
