"""Unions of specs that are told apart by `kind`."""

import types
from collections.abc import Collection
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field

from denoisers.contract import Spec


def kinds_of(annotation: Any) -> dict[str, type[Spec]]:
    """Return the spec classes of an annotation by their kind; {} for one that is no union of such classes."""
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return {kind: spec for member in get_args(annotation) for kind, spec in kinds_of(member).items()}
    if isinstance(annotation, type) and issubclass(annotation, Spec) and "kind" in annotation.model_fields:
        return {str(annotation.model_fields["kind"].default): annotation}
    return {}


def with_kinds(annotation: Any, specs: Collection[type[Spec]]) -> Any:
    """Return the annotation of a union with further classes."""
    kinds: Any = Union[(*kinds_of(annotation).values(), *specs)]
    return Annotated[kinds, Field(discriminator="kind")]


def check_kind(kind: str, spec: Any, base: type[Spec]) -> None:
    """Raise ValueError if `spec` is no subclass of `base` with this kind and defaults that can be written out."""
    if not (isinstance(spec, type) and issubclass(spec, base)):
        raise ValueError(f"it is {spec!r}, not a subclass of {base.__module__}.{base.__name__}")
    field = spec.model_fields["kind"]
    if field.default != kind or get_args(field.annotation) != (kind,):
        raise ValueError(f"its kind must be `kind: Literal[{kind!r}] = {kind!r}`")
