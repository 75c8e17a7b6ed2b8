"""Imports by blocks: input in numbered blocks, each made into shards by one pure function, the manifest written last.

An importer has a plan (`blocks.ImportPlan`: fixed blocks, and a fingerprint of source and options), rules
(`blocks.BlockRules`, which can be pickled, write a block's shards and return its receipt), and an end: it makes a store
of the receipts of `blocks.run_blocks`. Whole blocks of a killed import are taken over; blocks run in processes of this
machine or on Ray (`cluster/imports`), and the result depends on neither, nor on kills.
"""
