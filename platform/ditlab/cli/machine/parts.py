"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="doctor",
            summary="Check this machine, or a cluster.",
            target="ditlab.cli.machine.commands:doctor",
            examples=(
                "ditlab doctor",
                "ditlab doctor --cluster --address 10.0.0.5:6379",
                "ditlab doctor --cluster --storage s3://BUCKET/checkpoints",
            ),
            position=260,
        ),
        Command(
            name="completion",
            summary="Print a script that completes commands and runs in a shell.",
            target="ditlab.cli.machine.commands:completion",
            examples=(
                'eval "$(ditlab completion bash)"',
                "ditlab completion fish > ~/.config/fish/completions/ditlab.fish",
            ),
            position=270,
        ),
    ),
    results="ditlab.cli.machine.results:RESULTS",
)
