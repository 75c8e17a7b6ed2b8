"""Fixtures of tests of streamed stores."""

from support.datasets import writing

make_store = writing.make_store
