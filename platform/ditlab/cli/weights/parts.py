"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="weights",
            summary="Tell format and spec of published weights, to train from them.",
            target="ditlab.cli.weights.commands:weights",
            examples=(
                "ditlab weights inspect weights",
                "ditlab weights inspect hf://OWNER/NAME@REVISION --json",
            ),
            position=230,
        ),
    ),
    results="ditlab.cli.weights.results:RESULTS",
)
