"""Order by streams (`data.order.kind=interleaved`): its fields, and what they must fit. No
torch.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ditlab.spec.data import HoldOutClasses, OrderSpec
from ditlab.spec.uris import is_uri
from ditlab.spec.values import num_bytes


class InterleavedOrderSpec(OrderSpec):
    """Streams, each mixed within a window: computed batch by batch, whatever the number of
    samples.
    """

    kind: Literal["interleaved"] = "interleaved"
    """Equal streams, each of which fills a slice of the batch."""
    holds_out_blocks: ClassVar[bool] = True
    streams: Annotated[int, Field(ge=1, le=2**16)]
    """Streams, which divide batch.size: at least as many as workers at most. A worker reads the
    streams of its samples alone, so that a node of n reads about an n-th of the data. Another
    number gives another order."""
    window: Annotated[int, Field(ge=1, le=2**16)] = 16
    """Blocks of a stream that are mixed: each epoch draws which blocks follow each other, and rows
    are permuted within so many. A block holds about 4 MiB of rows; in a store of over 1 TiB,
    several neighbours count as one."""

    def check_source(self, data: Any) -> None:
        if isinstance(data.hold_out, float | int):
            return
        if isinstance(data.hold_out, HoldOutClasses):
            classes = data.hold_out
        else:
            classes = data.hold_out[0]
        raise ValueError(
            f"data.hold_out.column={classes.column} would read every sample of the store, "
            "which data.order.kind=interleaved never does; give data.hold_out a share, or set "
            "data.order.kind to full."
        )

    def check_batch(self, batch_size: int, workers: int) -> None:
        if batch_size % self.streams:
            raise ValueError(
                f"data.order.streams={self.streams} does not divide batch.size={batch_size}, of "
                "which each stream fills an equal slice; set data.order.streams to a divisor, or "
                "change batch.size."
            )
        if self.streams < workers:
            raise ValueError(
                f"data.order.streams={self.streams} is fewer than the {workers} workers that "
                f"resources.workers allows; set data.order.streams to {workers} or more, or "
                "lower resources.workers."
            )

    def open_streamed(self, data: Any, home: Any, notify: Any) -> Any:
        from ditlab_addons.streaming.streamed_store import fits_disk, open_streamed_store

        if not is_uri(data.path) or data.access == "copy":
            return None
        if data.access == "auto" and fits_disk(data.path, home):
            return None
        return open_streamed_store(data.path, home, num_bytes(data.cache), notify)

    def sample_order(self, view: Any, batch_size: int, seed: int) -> Any:
        from ditlab_addons.streaming.sharded_order import ShardedOrder

        return ShardedOrder.from_view(view, batch_size, seed, self.streams, self.window)
