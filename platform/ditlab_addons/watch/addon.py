"""The command `watch`, described without its code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="watch",
            summary="Show a run's page live in a browser, while it trains.",
            target="ditlab_addons.watch.commands:watch",
            examples=(
                "ditlab watch digits-dit",
                "ditlab watch 1a2b3c4d --port 0 --no-open",
            ),
            position=120,
        ),
    ),
    results="ditlab_addons.watch.commands:RESULTS",
)
