"""Composition of data: mixtures of sources, attention among documents, what counts in a content hash."""
