"""Importers: a file each, named as `ditlab data import` names it; each imports its format's library inside.

An importer's module has what can be asked of it, whose fields become the command's flags, and one function:

    OPTIONS = MnistOptions  # of ditlab.spec.importing

    def run(request: ImportRequest[MnistOptions]) -> list[Imported]: ...
"""
