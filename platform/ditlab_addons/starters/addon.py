"""The command `new`, described without its code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="new",
            summary="Write a commented spec to begin with.",
            target="ditlab_addons.starters.starters:new",
            examples=(
                "ditlab new",
                "ditlab new mine --like digits/dit",
                "ditlab new rates --like digits/sweep_schedule",
            ),
            position=170,
        ),
    ),
    results="ditlab_addons.starters.results:RESULTS",
)
