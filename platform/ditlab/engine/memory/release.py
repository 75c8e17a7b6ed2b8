"""Release of a module from DeepSpeed, in whatever state an exception left it, for the next engine.

Parameters of ZeRO-3 stay partitioned, which the next ZeRO-3 engine expects of them. Touches DeepSpeed's private names;
`tests/ditlab/engine` fails when they move.
"""

from typing import Any

from torch import nn

from ditlab.engine.deepspeed_import import import_deepspeed


def release(module: nn.Module) -> None:
    """Drop gradients, and finish or drop the transfers of a pass that an exception interrupted."""
    _leave_forward_pass(module)
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


def _leave_forward_pass(module: nn.Module) -> None:
    """Remove the module from DeepSpeed's stack of forward passes under way, where a root stays for good.

    It is a global list: the network of every closed ZeRO-3 engine would stay in memory.
    """
    import_deepspeed()
    from deepspeed.runtime.zero import parameter_offload

    own = set(module.modules())
    parameter_offload.FWD_MODULE_STACK[:] = [each for each in parameter_offload.FWD_MODULE_STACK if each not in own]
    for each in own:
        parameters: Any = each._parameters
        if isinstance(parameters, parameter_offload.ZeROOrderedDict):
            parameters._in_forward = False  # or reading a parameter would gather it and look for the pass in the stack
