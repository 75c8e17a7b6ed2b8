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
    ),
    results="ditlab.cli.machine.results:RESULTS",
)
