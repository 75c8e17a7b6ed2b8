"""The command `data encode`, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(
    subcommands={"data encode": "ditlab_addons.encode.commands:encode"},
    results="ditlab_addons.encode.commands:RESULTS",
)
