"""Features as columns: the same as in the step, reproducible, and never silently beyond float16."""

import numpy as np
import torch

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab_addons.encode.encoding import image_columns, text_columns
from support.damage import refused


def test_features_that_are_not_finite_are_refused(text_folder, image_folder):
    text = FrozenTextEncoder(str(text_folder), None, 64)
    image = FrozenImageEncoder(str(image_folder), None, 4)
    with torch.no_grad():
        text.network.norm.weight.fill_(1e6)
        image.network.norm.bias.fill_(float("nan"))
    with refused(r"gives text that is NaN or infinite in float16 \(they are beyond"):
        text_columns(text, ["a red seven"], 64)
    with refused(r"image encoder gives image_features .* \(the checkpoint is damaged\)"):
        image_columns(image, np.zeros((1, 3, 8, 8), np.uint8))
