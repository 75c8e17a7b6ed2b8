"""Checks that specs share. A message names the knob, its value and the remedy. Imports no torch."""


def check_multiple(knob: str, value: int, factor: int, reason: str, step: int | None = None) -> None:
    """Raises ValueError unless `value` is a multiple of `factor`, and names the nearest that are.

    `reason` says what the factor is; `step`, a multiple of `factor`, is what the values named must be multiples of.
    """
    if value % factor == 0:
        return
    step = step or factor
    below = value - value % step
    remedy = f"{below} or {below + step}" if below else str(step)
    raise ValueError(f"{knob}={value} is no multiple of {reason}; set {knob} to {remedy}.")
