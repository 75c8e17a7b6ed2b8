"""YAML to specs: files, overrides, paths of fields, messages."""
