"""Formats of published weights, a file each, which defines `FORMAT`. A file put here is known, and nothing lists it."""
