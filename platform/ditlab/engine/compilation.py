"""Regional compilation: torch.compile of a network's blocks, one graph for each kind of block.

Matrix products of compiled graphs on a CPU are oneDNN's, in the place of MKL's; those of weights'
gradients where MKL leaves half of the processor's width unused.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from ditlab.engine.deepspeed_internals import import_deepspeed
from ditlab.errors import UserError
from ditlab.spec.compiling import missing_to_compile

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default)
_library = torch.library.Library("ditlab", "DEF")


def compile_blocks(network: Any, device: torch.device, whole_gathers: bool) -> None:
    """Compile the forward pass of a network's `compiled_modules`, each kind at its first call on
    `device`.

    A module is changed once only. With `whole_gathers`, for ZeRO-3, a block's parameters are
    gathered and released together: the hooks that would do so for each of its layers break the
    graph in between.

    Raises UserError where a C++ compiler or Python's headers are missing, and for a network that
    names no blocks.
    """
    if not hasattr(network, "compiled_modules"):
        raise UserError(
            f"engine.compile compiles blocks, and the network {type(network).__name__} names "
            "none; give it a method `compiled_modules`, or set engine.compile to false."
        )
    missing = missing_to_compile()
    if missing:
        raise UserError(
            f"engine.compile needs {missing.what}; {missing.remedy}, or set engine.compile to "
            "false; `ditlab sample` takes --no-compile."
        )
    kinds: Mapping[str, Sequence[nn.Module]] = network.compiled_modules()
    # Or two sizes that are equal at the first call (batch and tokens) would be taken to be equal
    # for good.
    torch.fx.experimental._config.use_duck_shape = False
    # Numbers of a block, such as a norm's epsilon, are constants. Torch takes them for inputs at
    # first, finds at the end of a trace that they are none, and traces again: a fifth of a cold
    # compile of pixelhdm/small.
    torch._dynamo.config.specialize_float = True
    options: dict[str, Any] = {}
    # On a GPU sizes are constants until others come: to divide an index by a number that is known
    # at run time alone took more of some kernels than their memory.
    dynamic = None
    if device.type == "cpu":
        dynamic = True
        # The processor says which vector instructions it has, and every compiler that takes torch's
        # headers (C++20) knows them; trying each by a compilation of its own takes 6 s where
        # nothing is compiled yet.
        if torch._inductor.config.cpp.vec_isa_ok is None:
            torch._inductor.config.cpp.vec_isa_ok = True
        options["post_grad_custom_post_pass"] = FasterProducts()
    for kind, modules in _alike(kinds):
        assert len({type(module) for module in modules}) == 1, (
            f"modules of kind {kind} are of several classes"
        )
        # A copy of the forward pass has a code object of its own, by which torch.compile keeps
        # graphs, and their limit.
        forward = type(modules[0]).forward
        code = forward.__code__.replace(co_name=kind)
        copy = FunctionType(
            code, forward.__globals__, kind, forward.__defaults__, forward.__closure__
        )
        copy.__kwdefaults__ = forward.__kwdefaults__
        compiled = torch.compile(copy, dynamic=dynamic, options=options)
        for module in modules:
            if "forward" in vars(module):
                continue
            module.forward = MethodType(compiled, module)
            if whole_gathers:
                import_deepspeed().utils.set_z3_leaf_module(module, True)
                if any(not each.requires_grad for each in network.parameters()):
                    module.register_forward_pre_hook(_require_input_gradient)


def _require_input_gradient(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Have a block that trains parameters take a gradient of its first input, where all before it
    is frozen.

    ZeRO-3 releases a block's parameters once the gradients of its inputs are there; without any,
    ahead of its pass.
    """
    tensors = [each for each in inputs if isinstance(each, Tensor) and each.is_floating_point()]
    if not torch.is_grad_enabled() or not tensors or any(each.requires_grad for each in tensors):
        return None
    if not any(each.requires_grad for each in module.parameters()):
        return None
    first = tensors[0]
    return tuple(each.detach().requires_grad_() if each is first else each for each in inputs)


def _alike(kinds: Mapping[str, Sequence[nn.Module]]) -> Iterator[tuple[str, list[nn.Module]]]:
    """Yield name and modules of each kind; a kind of which some are frozen or adapted, and others
    not, is several.
    """
    for kind, modules in kinds.items():
        found: dict[tuple[tuple[str, bool], ...], list[nn.Module]] = {}
        for module in modules:
            trained = tuple((name, each.requires_grad) for name, each in module.named_parameters())
            found.setdefault(trained, []).append(module)
        for number, alike in enumerate(found.values()):
            yield f"{kind}_{number}" if number else kind, alike


@contextmanager
def compiled_blocks(network: Any, device: torch.device) -> Iterator[None]:
    """Compile a network's blocks inside, as `compile_blocks` does, for passes without gradients."""
    compile_blocks(network, device, whole_gathers=False)
    try:
        yield
    finally:
        for module in chain(*network.compiled_modules().values()):
            vars(module).pop("forward", None)


# Defined so, and not by `custom_op`, whose wrapper costs several times the 10 microseconds of this
# at every product.
_library.define("product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x weight^T + bias: (rows, inputs), (outputs, inputs), (outputs,) -> (rows, outputs),
    all float32.
    """
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return found


_library.impl("product", _product, "CPU")
_library.impl("product", lambda x, weight, bias: x.new_empty(x.shape[0], weight.shape[0]), "Meta")


_library.define("weight_gradient(Tensor left, Tensor x) -> Tensor")


def _weight_gradient(left: Tensor, x: Tensor) -> Tensor:
    """Compute left x: (outputs, rows) stored by columns, (rows, inputs) -> (outputs, inputs), all
    float32.

    oneDNN takes its left operand by rows, so it copies it: of the two, the one that is narrower,
    unless the transposed result, which is copied then, is larger than what that saves.
    """
    outputs, rows = left.shape
    inputs = x.shape[1]
    if (outputs - inputs) * rows > outputs * inputs:
        return _product(x.t(), left, None).t().contiguous()
    return _product(left, x.t(), None)


_library.impl("weight_gradient", _weight_gradient, "CPU")
_library.impl("weight_gradient", lambda left, x: x.new_empty(left.shape[0], x.shape[1]), "Meta")


@cache
def mkl_lacks_avx512() -> bool:
    """Return True on an AMD processor with AVX-512: MKL, whose log names none there, has 0.45 of
    oneDNN's rate.
    """
    cpuinfo = Path("/proc/cpuinfo")
    is_amd = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()
    return is_amd and torch.backends.cpu.get_cpu_capability() == "AVX512"


class FasterProducts(CustomGraphPass):
    """Pass over a graph that gives oneDNN the float32 products whose left operand is stored by
    rows.

    Those of a left operand stored by columns, which are gradients of weights, only where
    `mkl_lacks_avx512`: elsewhere MKL was as fast or faster.
    """

    def __call__(self, graph: fx.Graph) -> None:
        if not torch.backends.mkldnn.is_available():
            return
        node: Any
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in _PRODUCTS or node.kwargs:
                continue
            bias, left, right = (None, *node.args)[-3:]
            value = left.meta["val"]
            if value.dtype != torch.float32 or (bias is not None and bias.meta["val"].ndim != 1):
                continue
            by_rows = value.stride()[-1] == 1
            is_weight_gradient = bias is None and value.stride()[0] == 1
            if not by_rows and not (is_weight_gradient and mkl_lacks_avx512()):
                continue
            with graph.inserting_before(node):
                if by_rows:
                    weight = graph.call_function(aten.permute.default, (right, [1, 0]))
                    weight.meta["val"] = right.meta["val"].t()
                    faster = graph.call_function(
                        torch.ops.ditlab.product.default, (left, weight, bias)
                    )
                else:
                    faster = graph.call_function(
                        torch.ops.ditlab.weight_gradient.default, (left, right)
                    )
                faster.meta.update(node.meta)
            node.replace_all_uses_with(faster)
            graph.erase_node(node)

    def uuid(self) -> Any:
        """Return a key for torch's cache of compiled graphs."""
        return get_hash_for_files((__file__,), str(mkl_lacks_avx512()))
