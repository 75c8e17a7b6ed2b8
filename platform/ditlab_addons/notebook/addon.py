"""Displays of specs, runs and progress in notebooks, described without their code."""

from ditlab.parts import Parts

ADDON = Parts(
    displays={
        "experiment": "ditlab_addons.notebook.specs:experiment_page",
        "progress": "ditlab_addons.notebook.html:notebook_bar",
        "result": "ditlab_addons.notebook.runs:result_page",
        "run": "ditlab_addons.notebook.runs:run_page",
        "runs": "ditlab_addons.notebook.runs:runs_page",
        "sweep": "ditlab_addons.notebook.specs:sweep_page",
    }
)
