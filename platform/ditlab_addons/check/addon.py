"""The commands `prove`, `replay` and `verify`, and `train --prove`, described without their
code.
"""

from ditlab.parts import Command, Parts, StartCheck

ADDON = Parts(
    commands=(
        Command(
            name="prove",
            summary="Compare a spec's engine with a reference, step by step.",
            target="ditlab_addons.check.commands:prove",
            examples=(
                "ditlab prove experiments/digits/dit.yaml",
                "ditlab prove experiments/digits/dit.yaml --set engine.zero.stage=2",
                "ditlab prove experiments/digits/unet.yaml --json",
                "ditlab prove experiments/digits/dit.yaml --against train.py",
            ),
            position=60,
        ),
        Command(
            name="eject",
            summary="Write a spec's training as one file of plain torch.",
            target="ditlab_addons.check.commands:eject",
            examples=(
                "ditlab eject experiments/digits/dit.yaml --out train.py",
                "ditlab eject experiments/dlm/small.yaml --out text.py",
            ),
            position=65,
        ),
        Command(
            name="replay",
            summary="Do a step of a run again: samples, losses, gradients.",
            target="ditlab_addons.check.commands:replay",
            examples=(
                "ditlab replay digits-dit --step 400",
                "ditlab replay 1a2b3c4d --step 1 --to 50 --check",
            ),
            position=70,
        ),
        Command(
            name="verify",
            summary="Check a run's receipts, files and data; do some steps again.",
            target="ditlab_addons.check.commands:verify",
            examples=(
                "ditlab verify digits-dit",
                "ditlab verify 1a2b3c4d --steps 10 --seed 7",
                "ditlab verify 1a2b3c4d --steps 0 --json",
            ),
            position=80,
        ),
    ),
    subcommands={"runs adopt": "ditlab_addons.check.commands:adopt"},
    results="ditlab_addons.check.results:RESULTS",
    functions={
        "compare_file": "ditlab_addons.check.functions:compare_file",
        "eject": "ditlab_addons.check.functions:eject",
        "prove": "ditlab_addons.check.functions:prove",
        "replay": "ditlab_addons.check.functions:replay",
        "verify": "ditlab_addons.check.functions:verify",
    },
    start_checks=(
        StartCheck(
            name="prove",
            help=(
                "First compare the engine with a reference (`ditlab prove`); train only where "
                "nothing is off."
            ),
            does="trains a few steps",
            target="ditlab_addons.check.functions:prove_before",
        ),
    ),
)
