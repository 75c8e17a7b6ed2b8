"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="params",
            summary="Count a model's parameters by component.",
            target="ditlab.cli.specs.commands:params",
            examples=(
                "ditlab params experiments/digits/dit.yaml --shapes",
                "ditlab params experiments/digits/dit.yaml --set model.depth=9",
            ),
            position=130,
        ),
        Command(
            name="validate",
            summary="Check specs without running them.",
            target="ditlab.cli.specs.commands:validate",
            examples=(
                "ditlab validate experiments/digits/dit.yaml",
                "ditlab validate experiments/digits/*.yaml",
            ),
            position=180,
        ),
        Command(
            name="show",
            summary="Print a spec with its parents, overrides and defaults resolved.",
            target="ditlab.cli.specs.commands:show",
            examples=(
                "ditlab show experiments/digits/dit.yaml --set model.depth=9",
                "ditlab show experiments/digits/sweep_schedule.yaml > resolved.yaml",
            ),
            position=190,
        ),
        Command(
            name="schema",
            summary="Print the JSON schema of experiments, or of a command's result.",
            target="ditlab.cli.specs.commands:schema",
            examples=(
                "ditlab schema --out experiment.schema.json",
                "ditlab schema --sweep",
                'ditlab schema --result "runs show"',
            ),
            position=200,
        ),
    ),
    results="ditlab.cli.specs.results:RESULTS",
)
