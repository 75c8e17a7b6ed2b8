"""The command `compare` and `ditlab.compare`, described without their code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="compare",
            summary="Compare runs: parameters, curves, speed, samples.",
            target="ditlab_addons.compare.commands:compare",
            examples=(
                "ditlab compare digits-dit digits-unet",
                "ditlab compare 1a2b3c4d 5e6f7a8b --grid 0 --out comparison",
            ),
            position=100,
        ),
    ),
    results="ditlab_addons.compare.commands:RESULTS",
    functions={"compare": "ditlab_addons.compare.functions:compare"},
)
