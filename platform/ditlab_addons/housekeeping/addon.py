"""The commands `runs rm`, `runs sync`, `data rm` and the function `remove_runs`, described without
their code.
"""

from ditlab.parts import Parts

ADDON = Parts(
    subcommands={
        "data rm": "ditlab_addons.housekeeping.commands:remove_stores",
        "runs rm": "ditlab_addons.housekeeping.commands:remove_runs",
        "runs sync": "ditlab_addons.housekeeping.sync:sync_command",
    },
    results="ditlab_addons.housekeeping.commands:RESULTS",
    functions={"remove_runs": "ditlab_addons.housekeeping.removal:remove_runs"},
)
