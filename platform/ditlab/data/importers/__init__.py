"""Importers: a file each, named as `ditlab data import` names it; each imports its format's library inside.

An importer's module has one function:

    def run(request: ImportRequest) -> list[Imported]: ...
"""
