"""Figure of guidance over time, by schedule."""

from __future__ import annotations

import numpy as np

from denoisers.figures import Curve, Figure, Lines
from denoisers.pixelhdm.spec import PixelHDMSamplingSpec
from denoisers.processes.flow.guidance import SCHEDULES, Guidance

NUM_TIMES = 401


def guidance_figure(spec: PixelHDMSamplingSpec) -> Figure:
    """Draw the guidance scale of every schedule at the spec's scale, bound and interval, its own schedule first."""
    t = np.linspace(0, 1, NUM_TIMES)
    names = sorted(SCHEDULES, key=lambda name: name != spec.guidance_schedule)
    curves = []
    for name in names:
        guidance = Guidance(spec.guidance, name, spec.min_scale, spec.interval)
        label = f"{name} (sampling.guidance_schedule)" if name == spec.guidance_schedule else name
        curves.append(Curve(t, np.array([guidance.scale_at(float(time)) for time in t]), label))
    start, end = spec.interval
    title = f"At least {spec.min_scale:g}; 1 outside {start:g} < t < {end:g}"
    lines = Lines(curves, title, "time t (0: noise, 1: data)", "guidance scale")
    return Figure([lines], title=f"Guidance over time, sampling.guidance={spec.guidance:g}", columns=1)
