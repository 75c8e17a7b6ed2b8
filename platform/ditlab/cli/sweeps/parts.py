"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="tune",
            summary="Run a sweep: trials, ranking, report.",
            target="ditlab.cli.sweeps.commands:tune",
            examples=(
                "ditlab tune experiments/digits/sweep_schedule.yaml --dry-run",
                "ditlab tune experiments/digits/sweep_schedule.yaml --set trials=4",
                "ditlab tune --resume 1a2b3c4d",
            ),
            position=20,
        ),
    ),
    results="ditlab.cli.sweeps.results:RESULTS",
)
