"""The command `doctor`, described without its code."""

from ditlab.parts import Command, Parts

ADDON = Parts(
    commands=(
        Command(
            name="doctor",
            summary="Check this machine, or a cluster.",
            target="ditlab_addons.doctor.commands:doctor",
            examples=(
                "ditlab doctor",
                "ditlab doctor --cluster --address 10.0.0.5:6379",
                "ditlab doctor --cluster --storage s3://BUCKET/checkpoints",
            ),
            position=260,
        ),
    ),
    results="ditlab_addons.doctor.commands:RESULTS",
)
