"""The kind `race` of a sweep's scheduler, and sweeps over samples, described without their code."""

from ditlab.parts import CommandOption, Parts, SweepKind

ADDON = Parts(
    schedulers={"race": "ditlab_addons.race.scheduler:SeedRace"},
    sweep_kinds=(
        SweepKind(
            name="run",
            noun="sweep over samples",
            load="ditlab_addons.race.samples.spec:load_checked",
            target="ditlab_addons.race.samples.commands:tune_samples",
        ),
    ),
    options=(
        CommandOption(
            command="schema",
            name="--samples",
            help="The schema of sweeps over the samples of a trained run.",
            target="ditlab_addons.race.samples.spec:sampling_sweep_schema",
        ),
    ),
    functions={
        "plan_samples": "ditlab_addons.race.samples.functions:plan_samples",
        "sweep_samples": "ditlab_addons.race.samples.functions:sweep_samples",
    },
    results="ditlab_addons.race.samples.commands:RESULTS",
)
