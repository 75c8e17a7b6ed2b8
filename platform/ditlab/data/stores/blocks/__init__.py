"""Blocks of a store: cut from batches, as Arrow messages, and in an index of places and hashes."""
