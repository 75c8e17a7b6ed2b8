"""The command `runs query`, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(
    subcommands={"runs query": "ditlab_addons.query.query:query"},
    results="ditlab_addons.query.results:RESULTS",
)
