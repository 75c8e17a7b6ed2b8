"""Checks that families share. A message names the option, its value and the remedy. Imports no
torch.
"""

from ditlab_models.contract import SampleRequest


def check_multiple(
    option: str, value: int, factor: int, reason: str, step: int | None = None
) -> None:
    """Raise ValueError unless `value` is a multiple of `factor`, and names the nearest that are.

    `reason` says what the factor is; `step`, a multiple of `factor`, is what the values named must
    be multiples of.
    """
    if value % factor == 0:
        return
    step = step or factor
    below = value - value % step
    remedy = f"{below} or {below + step}" if below else str(step)
    raise ValueError(f"{option}={value} is no multiple of {reason}; set {option} to {remedy}.")


def check_mlp_ratio(width: int, ratio: float, option: str = "model.width") -> None:
    """Raise ValueError unless `ratio` times `width`, the value of `option`, is a whole number of at
    least 1, and names the nearest ratio."""
    if width > 10**9 or width * ratio > 1e9:  # above 1e308 there is no float of it
        raise ValueError(
            f"{option}={width} and model.mlp_ratio={ratio:g} make an MLP of more than "
            "1,000,000,000 units; lower one of them."
        )
    wide = width * ratio
    whole = max(1, round(wide))
    if abs(wide - whole) > 1e-3:
        raise ValueError(
            f"model.mlp_ratio={ratio:g} makes an MLP {wide:g} wide ({option}={width}); "
            f"set model.mlp_ratio to {whole / width:.8g} for a width of {whole}."
        )


def check_no_label(request: SampleRequest) -> None:
    """Raise ValueError for a label, of a family without classes."""
    if request.label is not None:
        raise ValueError(
            f"label={request.label} was given to a model without classes; leave the label out."
        )


def check_no_prompts(request: SampleRequest) -> None:
    """Raise ValueError for a prompt, of a family without text."""
    if request.prompts:
        raise ValueError(
            f"prompt={request.prompts[0].text!r} was given to a model without text; leave the "
            "prompt out."
        )
