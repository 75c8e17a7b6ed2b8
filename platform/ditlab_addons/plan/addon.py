"""The commands `plan` and `profile`, described without their code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="plan",
            summary="Forecast memory, time and cost of a run before a GPU is taken.",
            target="ditlab_addons.plan.commands:plan",
            examples=(
                "ditlab plan experiments/digits/dit.yaml --measure",
                "ditlab plan experiments/pixelhdm/base.yaml --gpu H100 --gpus 8 --price 2.50",
                "ditlab plan experiments/region/get.yaml --gpu L4 --json",
            ),
            position=140,
        ),
        Command(
            name="profile",
            summary="Show where the time of a training step goes.",
            target="ditlab_addons.plan.commands:profile",
            examples=(
                "ditlab profile experiments/digits/dit.yaml",
                "ditlab profile experiments/digits/unet.yaml --steps 5 --out profile",
            ),
            position=150,
        ),
    ),
    results="ditlab_addons.plan.results:RESULTS",
)
