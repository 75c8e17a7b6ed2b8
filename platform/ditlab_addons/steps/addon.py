"""The command `make`, and files of steps, described without their code."""

from ditlab.parts import Command, CommandOption, FileKind, Parts

ADDON = Parts(
    commands=(
        Command(
            name="make",
            summary="Make a graph of experiments, each step once.",
            target="ditlab_addons.steps.commands:make",
            examples=(
                "ditlab make experiments/digits/study.yaml --dry-run",
                "ditlab make experiments/digits/study.yaml",
            ),
            position=45,
        ),
    ),
    results="ditlab_addons.steps.commands:RESULTS",
    functions={"make": "ditlab_addons.steps.making:make"},
    run_observers=("ditlab_addons.steps.observing:observe_run",),
    sweep_observers=("ditlab_addons.steps.observing:observe_sweep",),
    options=(
        CommandOption(
            command="schema",
            name="--steps",
            help="The schema of files of steps.",
            target="ditlab_addons.steps.graph:graph_schema",
        ),
    ),
    removal_remarks=("ditlab_addons.steps.page:removal_remarks",),
    file_kinds=(
        FileKind(
            name="steps",
            noun="graph of steps",
            command="make",
            load="ditlab_addons.steps.tasks:load_checked_graph",
            page="ditlab_addons.steps.page:live_page",
        ),
    ),
)
