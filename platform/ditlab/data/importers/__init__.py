"""Importers: a module each, named as in `ditlab data import NAME`; each imports its format's library inside.

An importer's module has a spec of its options, whose fields become the command's flags, and one function:

    OPTIONS = MnistOptions  # of ditlab.spec.importing

    def run(request: ImportRequest[MnistOptions]) -> list[WrittenStore]: ...

One that works by blocks (`data.block_imports`) says so with `BY_BLOCKS = True`: its command has --address, and its
request an executor.
"""
