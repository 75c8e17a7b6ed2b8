"""Regional compilation: torch.compile of a network's blocks, one graph for each kind of block.

The blocks of a kind share one compiled function, so a deep network costs no more to compile than a shallow one, and
everything around the blocks stays eager. Batch and sequence are symbolic from the first call on: a graph that was first
made for one size and then anew for all would make the bits of a step depend on which sizes a process had seen before,
and a resumed run has seen others. A size of 1 gets a graph of its own, and so do convolutions of a CPU below 16
samples, for which torch chooses another implementation by that number: which graph a size takes is fixed all the same.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from ditlab.engine.deepspeed_import import import_deepspeed
from ditlab.errors import UserError


def compile_blocks(network: Any, device: torch.device, whole_gathers: bool) -> None:
    """Compile the forward pass of a network's `compiled_modules`, each kind at its first call on `device`.

    A module is changed once only. With `whole_gathers`, for ZeRO-3, a block's parameters are gathered and released
    together: the hooks that would do so for each of its layers break the graph in between.

    Raises UserError where there is no C++ compiler, and for a network that names no blocks.
    """
    if not hasattr(network, "compiled_modules"):
        raise UserError(
            f"engine.compile compiles blocks, and the network {type(network).__name__} names none; give it a method "
            "`compiled_modules`, or set engine.compile to false."
        )
    check_compiler()
    kinds: Mapping[str, Sequence[nn.Module]] = network.compiled_modules()
    # Or two sizes that are equal at the first call (batch and tokens) would be taken to be equal for good.
    torch.fx.experimental._config.use_duck_shape = False
    # Numbers of a block, such as a norm's epsilon, are constants. Torch takes them for inputs at first, finds at the
    # end of a trace that they are none, and traces anew: a fifth of a cold compile of pixelhdm/small.
    torch._dynamo.config.specialize_float = True
    options: dict[str, Any] = {}
    if device.type == "cpu":
        from ditlab.engine.products import FasterProducts  # imports torch's compiler: 1 s

        # The processor says which vector instructions it has, and every compiler that takes torch's headers (C++20)
        # knows them; trying each by a compilation of its own takes 6 s where nothing is compiled yet.
        if torch._inductor.config.cpp.vec_isa_ok is None:
            torch._inductor.config.cpp.vec_isa_ok = True
        options["post_grad_custom_post_pass"] = FasterProducts()
    for kind, modules in kinds.items():
        if not modules:
            continue  # as of the blocks before the last one in a network of one block
        assert len({type(module) for module in modules}) == 1, f"modules of kind {kind} are of several classes"
        compiled = torch.compile(_own_copy(type(modules[0]).forward, kind), dynamic=True, options=options)
        for module in modules:
            if "forward" in vars(module):
                continue
            module.forward = MethodType(compiled, module)
            if whole_gathers:
                import_deepspeed().utils.set_z3_leaf_module(module, True)


def check_compiler() -> None:
    """Raise UserError where this machine has no C++ compiler; torch's generated kernels need one, on a GPU too."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    if not any(shutil.which(name) for name in candidates):
        raise UserError(
            f"engine.compile needs a C++ compiler, and this machine has no `{candidates[0]}`; install g++ (or point "
            "CXX at a compiler), or set engine.compile to false."
        )


def _own_copy(function: Any, name: str) -> FunctionType:
    """Copy a function with a code object of its own: torch.compile keeps graphs, and their limit, by code object."""
    code = function.__code__.replace(co_name=name)
    copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
