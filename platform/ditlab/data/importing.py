"""Importers by name: their options, and running one."""

import pkgutil
from importlib import import_module
from types import ModuleType

import ditlab.data.importers as importers
from denoisers.contract import Spec
from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError, nearest


def importer_names() -> list[str]:
    """Return the importers' names: the modules of `ditlab.data.importers`."""
    return sorted(module.name for module in pkgutil.iter_modules(importers.__path__))


def options_class(name: str) -> type[Spec]:
    """Return the spec of an importer's options. Raises UserError for an unknown importer."""
    declared: type[Spec] = _importer(name).OPTIONS
    return declared


def runs_by_blocks(name: str) -> bool:
    """Return True for an importer that works by blocks, which a cluster can share. Raises as `options_class` does."""
    return bool(getattr(_importer(name), "BY_BLOCKS", False))


def run_import(name: str, request: ImportRequest[Spec]) -> list[WrittenStore]:
    """Run an importer. Raises UserError for an unknown importer, and as the importer does."""
    written: list[WrittenStore] = _importer(name).run(request)
    return written


def _importer(name: str) -> ModuleType:
    if name not in importer_names():
        raise UserError(f"there is no importer '{name}'; {nearest(name, importer_names())}")
    return import_module(f"ditlab.data.importers.{name}")
