"""Profiles of training steps: what `ditlab profile` calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ditlab.analysis.profiling.profile import Profile, profile_steps
from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.interface.specs import load
from ditlab.spec.experiment import Experiment

MOST_STEPS = 20
"""Steps of a profile at most: a trace of a step of a large network takes some MB."""


def profile(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    num_steps: int = 3,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Take some training steps of an experiment on one worker of this machine, and profile them.

    Leaves no run behind: a trace, `trace.json.gz`, which Perfetto and Chrome open, in the folder `out` (None:
    DITLAB_HOME/caches/profile/NAME).

    Raises:
        UserError: the input is wrong, or the machine has no GPU for an experiment that needs one.
    """
    import torch

    if not 1 <= num_steps <= MOST_STEPS:
        raise UserError(f"--steps={num_steps} is not between 1 and {MOST_STEPS}; a trace of more is too large to open.")
    experiment = experiment if isinstance(experiment, Experiment) else load(experiment, overrides)
    if experiment.resources.gpus_per_worker and not torch.cuda.is_available():
        raise UserError(
            f"resources.gpus_per_worker={experiment.resources.gpus_per_worker:g}, and this machine has no GPU to "
            "profile on; set resources.gpus_per_worker to 0, or profile on a machine with one."
        )
    home = Home.from_environment().ensure()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its remarks go to standard error
    folder = output_folder(out or home.caches / "profile" / experiment.name)
    alone = experiment.replace_all(
        {"resources.workers": 1, "batch.micro": experiment.micro_size, "evaluation.every": None}
    )
    with building(), writing(folder):
        return profile_steps(alone, home, num_steps, folder / "trace.json.gz", say)
