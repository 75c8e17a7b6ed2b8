"""Kind of `data.order` under which stores are streamed, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(orders={"lanes": "ditlab_addons.streaming.lanes:LanesOrderSpec"})
