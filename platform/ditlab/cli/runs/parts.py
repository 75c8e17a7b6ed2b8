"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="runs",
            summary="List, query, rename and delete runs; send MLflow what it missed.",
            target="ditlab.cli.runs.commands:runs",
            examples=(
                "ditlab runs --num 50",
                "ditlab runs show digits-dit",
                "ditlab runs log 1a2b3c4d",
                'ditlab runs query "SELECT name, main_value FROM runs"',
                "ditlab runs rename 1a2b3c4d wide",
                "ditlab runs adopt out",
                "ditlab runs rm 1a2b3c4d --dry-run",
                "ditlab runs sync",
                "ditlab runs sync 1a2b3c4d --tracking http://127.0.0.1:5000",
            ),
            position=240,
        ),
    ),
    results="ditlab.cli.runs.results:RESULTS",
)
