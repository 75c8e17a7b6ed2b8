"""Commands of this folder, described without their code."""

from ditlab.parts import Command, Parts

PARTS = Parts(
    commands=(
        Command(
            name="sample",
            summary="Draw samples from a run's weights.",
            target="ditlab.cli.analysis.commands:sample",
            examples=(
                "ditlab sample digits-dit --num 16",
                "ditlab sample 1a2b3c4d --solver heun --steps 25 --seed 3 --out samples",
                "ditlab sample mnist-class --label 7 --guidance 2",
                'ditlab sample captions --prompt "a red circle" --size 32x48',
            ),
            position=40,
        ),
        Command(
            name="evaluate",
            summary="Measure a run on held-out data, and add the metrics to it.",
            target="ditlab.cli.analysis.commands:evaluate",
            examples=(
                "ditlab evaluate digits-dit",
                "ditlab evaluate 1a2b3c4d --quality 2000",
                "ditlab evaluate 1a2b3c4d --quality 500 --set sampling.steps=10",
                "ditlab evaluate 1a2b3c4d --ema 0.05,0.1,0.15,0.2,0.25",
            ),
            position=50,
        ),
        Command(
            name="figures",
            summary="Draw the figures of a run's family, or those that need no run.",
            target="ditlab.cli.analysis.commands:figures",
            examples=(
                "ditlab figures --list",
                "ditlab figures digits-dit --kind loss --out figures",
            ),
            position=160,
        ),
        Command(
            name="export",
            summary="Write a run's weights as safetensors with the spec that rebuilds the network.",
            target="ditlab.cli.analysis.commands:export",
            examples=(
                "ditlab export digits-dit --out weights",
                "ditlab export 1a2b3c4d --out weights --raw",
            ),
            position=220,
        ),
    ),
    results="ditlab.cli.analysis.results:RESULTS",
)
