"""Version of the numbers that a training run computes.

Raise `NUMERICS_VERSION` by one with every change after which the same spec gives other losses or
weights: another random draw, order of samples, initialisation, loss or update. Leave it for a
change of speed, memory or wording, and for rounding that already depends on the machine. A
checkpoint holds the version it was written with.

- 2: angles of time embeddings and of `region`'s positions are computed in float64 and rounded once,
  to the dtype of the weights. Sinusoids move by up to 3e-5 (angles near 1000), losses of the first
  steps by a few units in the last place.
- 3: captions and their features are padded to the longest of their micro-batch, in the place of the
  store's longest: attention over text sums fewer zeros. Losses of `pixelhdm` move by a few units in
  the last place, others not at all.
- 4: on a GPU the masks of `region` are those that a CPU draws: how many regions they hide is known
  without waiting for the GPU. A CPU's numbers are those of version 3.
- 5: on a GPU the loss of `dlm` is summed in larger chunks, and a gradient is divided by its norm's
  share of the limit of adaptive clipping, in the place of a product. A CPU's numbers are those of
  version 3.
- 6: the loss of `region` under `objective.reduction: entry_mean` counts masked entries over the
  whole batch, in the place of a micro-batch or a worker's part. All else is that of version 5.
"""

NUMERICS_VERSION = 6
ON_GPUS_ALONE = (4, 5)
"""Versions that changed nothing on a CPU."""


def version_warning(written: int, device_type: str) -> str:
    """Warning for a run that goes on from a checkpoint of version `written` on a `cpu` or `cuda`;
    empty for none.
    """
    first, last = sorted((written, NUMERICS_VERSION))
    if all(
        device_type == "cpu" and number in ON_GPUS_ALONE for number in range(first + 1, last + 1)
    ):
        return ""
    return (
        f"the checkpoint was written with numerics version {written}, and this is version "
        f"{NUMERICS_VERSION}: from here on the run computes other numbers than it would have, "
        "so its losses before and after are not one curve."
    )
