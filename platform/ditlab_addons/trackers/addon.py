"""Trackers beside MLflow by the scheme of their addresses, described without their code."""

from ditlab.parts import Parts

ADDON = Parts(trackers={"trackio": "ditlab_addons.trackers.trackio_backend:TrackioBackend"})
