"""The command `data inspect`, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(
    subcommands={"data inspect": "ditlab_addons.inspection.commands:inspect"},
    results="ditlab_addons.inspection.commands:RESULTS",
)
