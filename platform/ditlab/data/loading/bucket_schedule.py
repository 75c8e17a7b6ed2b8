"""Schedule of an epoch's batches over buckets, computed in no memory."""

from collections.abc import Sequence

import numpy as np

from ditlab.data.loading.computed_permutation import key_of, permuted
from ditlab.data.loading.interleaving import Interleaving
from ditlab.data.loading.order import CHUNK_BATCHES


class BucketSchedule:
    """Bucket of each batch of an epoch: chunks of CHUNK_BATCHES of one bucket, interleaved in proportion.

    Each bucket's batches come in their own order. Its last ones that fill no chunk come at the epoch's end.
    """

    def __init__(self, batches: Sequence[int], text: str):
        """Schedule buckets of so many batches each."""
        counts = np.asarray(batches, np.int64)
        self._chunks = Interleaving((counts // CHUNK_BATCHES).tolist(), f"{text}/chunks")
        self._in_chunks = counts // CHUNK_BATCHES * CHUNK_BATCHES
        self._last = permuted(np.arange(len(counts)), len(counts), key_of(f"{text}/last"))
        """Order of the buckets at the epoch's end."""
        self._last_ends = np.cumsum((counts - self._in_chunks)[self._last])

    def locate(self, batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (bucket, number in the bucket) of batches of the epoch, int64 each."""
        buckets, numbers = np.empty_like(batches), np.empty_like(batches)
        chunked = batches < self._chunks.total * CHUNK_BATCHES
        chunks, inside = np.divmod(batches[chunked], CHUNK_BATCHES)
        buckets[chunked], chunks = self._chunks.locate(chunks)
        numbers[chunked] = chunks * CHUNK_BATCHES + inside
        late = batches[~chunked] - self._chunks.total * CHUNK_BATCHES
        place = np.searchsorted(self._last_ends, late, side="right")
        bucket = self._last[place]
        buckets[~chunked] = bucket
        numbers[~chunked] = self._in_chunks[bucket] + late - np.append(0, self._last_ends)[place]
        return buckets, numbers

    def num_before(self, batch: int) -> np.ndarray:
        """Return how many batches of each bucket come before a batch of the epoch, int64 (buckets,)."""
        chunk, inside = divmod(batch, CHUNK_BATCHES)
        if chunk < self._chunks.total:
            found = self._chunks.num_before(chunk) * CHUNK_BATCHES
            found[self._chunks.locate(np.array([chunk]))[0]] += inside
            return found
        found = self._in_chunks.copy()
        late = batch - self._chunks.total * CHUNK_BATCHES
        begins = np.append(0, self._last_ends[:-1])
        found[self._last] += np.clip(late - begins, 0, self._last_ends - begins)
        return found
