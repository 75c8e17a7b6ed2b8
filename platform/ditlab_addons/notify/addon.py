"""The section `notify` and what acts on it, described without their code."""

from ditlab.parts import CommandOption, Parts

ADDON = Parts(
    sections={"notify": "ditlab_addons.notify.section:NotifySection"},
    sweep_sections={"notify": "ditlab_addons.notify.section:SweepNotifySection"},
    run_observers=("ditlab_addons.notify.observing:observe_run",),
    sweep_observers=("ditlab_addons.notify.observing:observe_sweep",),
    options=(
        CommandOption(
            command="watch",
            name="--notify",
            help=(
                "Send word by `notify` of RUN's spec once the process that leads it is gone "
                "without an end."
            ),
            target="ditlab_addons.notify.watching:watch_loss",
        ),
    ),
)
