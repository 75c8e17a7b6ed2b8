"""Kinds of `optimizer` and of `schedule`, described without their code."""

from ditlab.parts import Parts

ADDON = Parts(
    optimizers={
        "muon": "ditlab_addons.optimizers.muon:Muon",
        "schedule_free_adamw": "ditlab_addons.optimizers.schedule_free:ScheduleFreeAdamW",
    },
    schedules={"inverse_sqrt": "ditlab_addons.optimizers.inverse_sqrt:InverseSqrtSchedule"},
)
