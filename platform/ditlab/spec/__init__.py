"""The experiment spec: pydantic models, their YAML, their overrides. Needs no torch."""
