"""Where samples come from (`data` in an experiment)."""

from typing import Annotated, Literal

from pydantic import Field

from denoisers.contract import Spec

HoldOut = Annotated[float, Field(ge=0, le=0.5)]


class DigitsData(Spec):
    """The 1,797 real 8x8 digits that scikit-learn carries. Needs no download."""

    kind: Literal["digits"] = "digits"
    """Embedded data: scikit-learn's 8x8 digits."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation."""


class MnistData(Spec):
    """MNIST, imported beforehand with `ditlab data import mnist` (from idx files in a folder, or by download)."""

    kind: Literal["mnist"] = "mnist"
    """MNIST's 28x28 digits."""
    split: Literal["train", "test"] = "train"
    """The idx files to train on: 60,000 (train) or 10,000 (test) digits."""
    hold_out: HoldOut | None = None
    """Share kept out of training. Null: none of `train`, whose evaluation uses `test`; a tenth of `test`."""


class ArrowData(Spec):
    """Any Arrow store that `ditlab data import` wrote."""

    kind: Literal["arrow"] = "arrow"
    """An Arrow store by path."""
    path: Annotated[str, Field(min_length=1)]
    """Folder of the store; relative paths start at the working directory."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation."""


DataSpec = Annotated[DigitsData | MnistData | ArrowData, Field(discriminator="kind")]
