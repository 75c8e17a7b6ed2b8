"""The scalable interpolant transformer as released (Ma et al. 2024, arXiv:2401.08740; willisma/SiT).

Names and shapes are DiT's. Time 0 is noise and 1 data there, and the velocity is data - noise; ours runs the other way,
v(x, t) = -v_SiT(x, 1 - t). Both signs go into the weights: the head is negated, and as

    cos(w (1 - t)) = cos(w) cos(w t) + sin(w) sin(w t),    sin(w (1 - t)) = sin(w) cos(w t) - cos(w) sin(w t),

the sinusoid of 1 - t is a fixed matrix times that of t, which joins the first Linear of the embedding of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ditlab.weights.published import WeightsFormat
from ditlab.weights.rules import Rule
from ditlab_addons.interop.formats.dit import BODY, CERTAIN, MARKS, released_model
from ditlab_models.layers.embeddings import frequencies


def _reverse_time(values: Sequence[Tensor]) -> Tensor:
    """Let a Linear (E, 256) on the sinusoid of t give what it gave on that of 1 - t."""
    omega = frequencies(values[0].shape[1])
    cos, sin = values[0].double().chunk(2, dim=1)  # columns of cosines, then of sines
    c, s = omega.cos(), omega.sin()
    return torch.cat((cos * c + sin * s, cos * s - sin * c), dim=1)


RULES = (
    *BODY,
    Rule(("t_embedder.mlp.0.weight",), "time.hidden.weight", _reverse_time),
    *(Rule((f"final_layer.linear.{kind}",), f"head.{kind}", lambda values: -values[0]) for kind in ("weight", "bias")),
)


def _notes(model: Mapping[str, Any]) -> list[str]:
    return [
        "time and velocity are turned round to ours (0 data, 1 noise) in the weights, exactly; the objective is "
        "{process: flow}.",
        f"no shape shows the number of heads: {model['num_heads']} are taken.",
    ]


FORMAT = WeightsFormat(
    "sit", "SiT as released (willisma/SiT), family dit; never found by itself, as its names are DiT's", MARKS, RULES,
    lambda shapes, files: released_model(shapes, files, "unused"), lambda tensors, files: False, CERTAIN, _notes,
)  # fmt: skip
