"""Kinds of `schedule`, described without their code."""

from ditlab.parts import Parts

ADDON = Parts(schedules={"inverse_sqrt": "ditlab_addons.schedules.inverse_sqrt:InverseSqrtSchedule"})
