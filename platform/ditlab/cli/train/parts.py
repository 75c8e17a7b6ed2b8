"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="train",
            summary="Train an experiment.",
            target="ditlab.cli.train.commands:train",
            examples=(
                "ditlab train experiments/digits/dit.yaml --local",
                "ditlab train experiments/digits/dit.yaml --set training.steps=2500",
                "ditlab train experiments/digits/dit.yaml --resume auto",
                "ditlab train experiments/digits/dit.yaml --dry-run",
                "ditlab train - --local < experiments/digits/dit.yaml",
            ),
            position=10,
        ),
        Command(
            name="submit",
            summary="Run an experiment or a sweep as a job of a Ray cluster.",
            target="ditlab.cli.train.commands:submit",
            examples=(
                "ditlab submit experiments/digits/dit.yaml --resume auto",
                "ditlab submit experiments/digits/sweep_schedule.yaml --no-wait",
            ),
            position=30,
        ),
    ),
    results="ditlab.cli.train.results:RESULTS",
)
