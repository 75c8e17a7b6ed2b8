"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="report",
            summary="Write one page for a run: curves, samples, speed, failures, spec.",
            target="ditlab.cli.pages.commands:report",
            examples=(
                "ditlab report digits-dit",
                "ditlab report 1a2b3c4d --out digits.html",
            ),
            position=110,
        ),
        Command(
            name="ui",
            summary="Open the MLflow UI on the runs in DITLAB_HOME.",
            target="ditlab.cli.pages.commands:ui",
            examples=(
                "ditlab ui",
                "ditlab ui --port 5001 --wait 600",
            ),
            position=250,
        ),
    ),
    results="ditlab.cli.pages.results:RESULTS",
)
