"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="ask",
            summary="Ask a run in training for samples, an evaluation, a checkpoint, its end.",
            target="ditlab.cli.ask.commands:ask",
            examples=(
                "ditlab ask digits-dit sample",
                "ditlab ask 1a2b3c4d evaluate --wait 60 --json",
                "ditlab ask 1a2b3c4d stop-after-evaluation --no-wait",
                "ditlab ask 1a2b3c4d checkpoint --address 10.0.0.5:6379",
            ),
            position=90,
        ),
    ),
    results="ditlab.cli.ask.results:RESULTS",
)
