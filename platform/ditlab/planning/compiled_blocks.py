"""Compiled blocks and fused attention on the meta device: what they keep for the backward pass, and what they write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

aten = torch.ops.aten
_compiled: dict[tuple[str, str], Any] = {}
"""Compiled forward passes by network and kind of block; one serves every size."""


def compile_on_meta(network: Any, name: str) -> None:
    """Replace the forward pass of a network's `compiled_modules` by what its compiled one does with memory.

    `name`: the same for networks that are alike but for their parameters, which share what is compiled.
    """
    kinds: Mapping[str, Sequence[nn.Module]] = network.compiled_modules()
    torch.fx.experimental._config.use_duck_shape = False  # as the engine: equal sizes may differ in the next batch
    for kind, modules in kinds.items():
        if (name, kind) not in _compiled:
            forward = _own_copy(type(modules[0]).forward, kind)
            _compiled[name, kind] = torch.compile(forward, backend=_halves, dynamic=True)
        for module in modules:
            module.forward = partial(_without_modes, MethodType(_compiled[name, kind], module))


def _without_modes(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call without modes of functions, under which torch's compiler cuts graphs in pieces."""
    with ExitStack() as stack:
        while torch._C._len_torch_function_stack():
            stack.enter_context(_pop_mode_temporarily())
        return forward(*inputs, **named)


def _own_copy(function: Any, name: str) -> FunctionType:
    code = function.__code__.replace(co_name=name)  # torch.compile keeps graphs by code object
    copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _halves(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph as torch's backend `inductor` does, up to the code of its kernels."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    for node in graph.graph.nodes:
        if node.target is nn.functional.scaled_dot_product_attention:
            node.target = fused_attention
    graph.recompile()
    partition = partial(min_cut_rematerialization_partition, compiler="inductor")
    return aot_autograd(
        fw_compiler=_Kernels, bw_compiler=_Kernels, decompositions=select_decomp_table, partition_fn=partition
    )(graph, inputs)


class _Kernels:
    """Half of a graph, run node by node: only what fused kernels write is seen by the modes around it."""

    def __init__(self, module: fx.GraphModule, _inputs: Sequence[Any]) -> None:
        self._module = module
        self._boxed_call = True  # for torch: a call empties the list of its arguments
        nodes = list(module.graph.nodes)
        self._written = _written(nodes)
        last = {used: node for node in nodes for used in node.all_input_nodes}
        self._dying: dict[fx.Node, list[fx.Node]] = {}
        for used, node in last.items():
            self._dying.setdefault(node, []).append(used)

    def __call__(self, arguments: list[Any]) -> Any:
        values: dict[fx.Node, Any] = {}
        given = iter(list(arguments))
        arguments.clear()
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
                if not node.users:
                    values[node] = None
                continue
            arguments_here = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                return arguments_here[0][0]
            values[node] = self._run(node, *arguments_here)
            del arguments_here
            is_fresh = node in self._written and not _is_kernel(node)
            fresh = [each for each in tree_iter(values[node]) if isinstance(each, Tensor)] if is_fresh else []
            for used in self._dying.get(node, ()):
                del values[used]
            for value in fresh:
                aten.alias(value)  # seen from here on: a fused kernel writes over an input that it is the last to read
        raise AssertionError("a graph has an output")

    def _run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self._module)  # type: ignore[arg-type]
        if node in self._written and _is_kernel(node):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        with _disable_current_modes():
            return node.target(*args, **kwargs)  # type: ignore[operator]


def _written(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose results memory holds: of kernels, and what these or the graph's output read."""
    needed: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or _is_kernel(node):
            needed.update(node.all_input_nodes)
        elif node in needed and _is_view(node):
            needed.update(node.all_input_nodes[:1])
    return {node for node in nodes if node.op == "call_function" and (_is_kernel(node) or node in needed)}


def _is_kernel(node: fx.Node) -> bool:
    """Return True for work that is not fused with its neighbours: products, convolutions, attention, scattering."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return _packet(node) not in _operators().fusible_ops and not _is_view(node)


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or _packet(node) in _operators().view_ops


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


@cache
def _operators() -> Any:
    from torch._functorch.partitioners import get_default_op_list

    return get_default_op_list()


class FusedAttention(TorchFunctionMode):
    """Attention by a fused kernel: the meta device would compute queries by keys as a matrix and keep it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        return fused_attention(*args, **(kwargs or {}))


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """Attend as `scaled_dot_product_attention` does, by the kernel that CPUs have; GPUs' keep as much."""
    if options.pop("enable_gqa", False):
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(repeats, -3) for each in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output: Tensor = kernel(query, key, value, attn_mask=attn_mask, **options)[0]
    return output
