"""The section `notify` and what acts on it, described without their code."""

from ditlab.parts import Parts

ADDON = Parts(
    sections={"notify": "ditlab_addons.notify.section:NotifySection"},
    sweep_sections={"notify": "ditlab_addons.notify.section:SweepNotifySection"},
    run_observers=("ditlab_addons.notify.observing:observe_run",),
    sweep_observers=("ditlab_addons.notify.observing:observe_sweep",),
)
