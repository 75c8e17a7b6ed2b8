"""Kind of `data.order` under which stores are streamed, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(
    orders={"interleaved": "ditlab_addons.streaming.interleaved_order:InterleavedOrderSpec"}
)
