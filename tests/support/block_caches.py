"""Blocks put into a cache as their fetcher does."""

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache


def put(cache: BlockCache, key: str, content: bytes) -> pa.Buffer:
    """Keep a block, and return it mapped; from memory where another writes it, or the disk refuses."""
    try:
        with cache.claim(key) as claim:
            if claim is not None:
                return cache.keep(key, claim, content)
    except OSError as error:
        cache.problem = error
    return pa.py_buffer(content)
