"""Learning-rate schedules: the rate as a function of the step."""

import math

from ditlab.spec.optimisation.schedules import (
    ConstantSchedule,
    ScheduleSpec,
    SteppedCosineRestartSchedule,
    WarmupCosineSchedule,
)


def learning_rate(schedule: ScheduleSpec, base: float, step: int, total: int, epoch_steps: int) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total`; an epoch has `epoch_steps` steps."""
    match schedule:
        case ConstantSchedule():
            return base * warmup(step, schedule.warmup_steps(epoch_steps))
        case WarmupCosineSchedule():
            return base * warmup_cosine(step, total, schedule.warmup_steps(epoch_steps), schedule.final)
        case SteppedCosineRestartSchedule():
            cycle = schedule.cycle or epoch_steps
            return base * stepped_cosine_restart(step, cycle, schedule.valley, schedule.decay, schedule.floor)


def warmup(step: int, length: int) -> float:
    """Linear rise: 1/length at step 0, 1 from step length - 1 on."""
    return min(1.0, (step + 1) / length) if length else 1.0


def warmup_cosine(step: int, total: int, length: int, final: float) -> float:
    """Linear warm-up over `length` steps, then half a cosine that reaches `final` at the last step."""
    if step < length:
        return warmup(step, length)
    progress = (step - length) / max(1, total - 1 - length)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def stepped_cosine_restart(step: int, cycle: int, valley: float, decay: float, floor: float) -> float:
    """Half a cosine from peak to valley in each cycle (SGDR, Loshchilov & Hutter 2017, arXiv:1608.03983), with peak 1
    and `valley` both multiplied by `decay` from one cycle to the next and never below `floor`."""
    number, place = divmod(step, cycle)
    peak, low = max(floor, decay**number), max(floor, valley * decay**number)
    return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * place / cycle))
