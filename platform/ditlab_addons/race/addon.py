"""The kind `race` of a sweep's scheduler, described without its code."""

from ditlab.parts import Parts

ADDON = Parts(schedulers={"race": "ditlab_addons.race.scheduler:SeedRace"})
