"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="plan",
            summary="Tell memory, time and cost of a run before a GPU is taken.",
            target="ditlab.cli.plan.commands:plan",
            examples=(
                "ditlab plan experiments/digits/dit.yaml --measure",
                "ditlab plan experiments/pixelhdm/base.yaml --gpu H100 --gpus 8 --price 2.50",
                "ditlab plan experiments/region/get.yaml --gpu L4 --apply smaller.yaml",
            ),
            position=140,
        ),
    ),
    results="ditlab.cli.plan.results:RESULTS",
)
