"""The command `ask` and the method `Run.ask`, described without their code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="ask",
            summary="Ask a run in training for samples, an evaluation, a checkpoint, its end.",
            target="ditlab_addons.ask.commands:ask",
            examples=(
                "ditlab ask digits-dit sample",
                "ditlab ask 1a2b3c4d evaluate --wait 60 --json",
                "ditlab ask 1a2b3c4d stop-after-evaluation --no-wait",
            ),
            position=90,
        ),
    ),
    results="ditlab_addons.ask.commands:RESULTS",
    run_methods={"ask": "ditlab_addons.ask.request:ask_run"},
)
