"""Embeddings of whole images, and of captions, that published figures compare: Inception, DINOv2,
CLIP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from ditlab.encoders.autoencoder import float32_convolutions
from ditlab.encoders.checkpoint import EncoderCheckpoint
from ditlab.encoders.image import MEAN, STD
from ditlab.errors import UserError
from ditlab.weights.files import WeightFiles
from ditlab_addons.figures.networks.inception import Inception

DINO_SIZE = 224
"""Pixels of a side to which images are resized for DINOv2."""
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of red, green and blue in [0, 1] by which CLIP's inputs are normalised."""
TYPES = {"dinov2": ("dinov2", "dinov2_with_registers"), "clip": ("clip",)}
"""Types of networks, as their config.json names them, by kind."""


class ImageEmbedder:
    """Frozen network that gives an image one vector of features, in float32."""

    def __init__(self, kind: str, files: WeightFiles, device: torch.device) -> None:
        """Open the network of a kind (inception, dinov2, clip). Raises UserError for weights of
        another one.
        """
        self.kind = kind
        self.device = device
        if kind == "inception":
            self.network: Any = _inception(files).to(self.device)
            return
        self._checkpoint = EncoderCheckpoint(files.folder, files.option)
        config = self._checkpoint.config()
        if config.model_type not in TYPES[kind]:
            raise UserError(
                f"{files.option} is a network of the kind {config.model_type}, and the "
                f"features of kind={kind} are of {TYPES[kind][0]}; name a folder of that kind."
            )
        self.network = self._checkpoint.network(torch.float32, self.device)
        if kind == "clip":
            self._tokenizer = self._checkpoint.tokenizer()

    @torch.no_grad()
    def images(self, images: Tensor) -> Tensor:
        """Embed images (num, 1 or 3, H, W), uint8, grey ones as equal red, green and blue; return
        (num, width).

        Inception: the 2048 features of FID. DINOv2: the class token behind the last norm. CLIP: the
        projected embedding, of length 1.
        """
        images = images.to(self.device).expand(-1, 3, -1, -1)
        with float32_convolutions():
            if self.kind == "inception":
                return self.network(images)
            if self.kind == "dinov2":
                return self.network(
                    pixel_values=_resized(images, DINO_SIZE, MEAN, STD)
                ).pooler_output
            side = self.network.config.vision_config.image_size
            found = self.network.get_image_features(
                pixel_values=_resized(images, side, CLIP_MEAN, CLIP_STD)
            )
            return normalize(_projected(found), dim=1)

    @torch.no_grad()
    def captions(self, texts: Sequence[str]) -> Tensor:
        """Embed captions by CLIP, (num, width), of length 1; tokens beyond its longest text are
        cut.
        """
        longest = self.network.config.text_config.max_position_embeddings
        tokens = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        tokens = {name: tokens[name].to(self.device) for name in ("input_ids", "attention_mask")}
        return normalize(_projected(self.network.get_text_features(**tokens)), dim=1)


def _projected(found: Any) -> Tensor:
    """Return CLIP's embeddings: transformers 4 gives the tensor, 5 a record that holds it."""
    if isinstance(found, Tensor):
        return found
    return found.pooler_output


def _inception(files: WeightFiles) -> nn.Module:
    """Return the network with a file's weights. Raises UserError where names or shapes are
    others.
    """
    with torch.device("meta"):
        network = Inception()
    tensors, _ = files.read()
    expected = {name: tuple(each.shape) for name, each in network.state_dict().items()}
    # not in files of old
    counts = [name for name in expected if name.endswith("num_batches_tracked")]
    tensors = {name: torch.zeros((), dtype=torch.int64) for name in counts} | tensors
    given = {name: tuple(each.shape) for name, each in tensors.items()}
    different = sorted(
        name for name in {*given, *expected} if given.get(name) != expected.get(name)
    )
    if different:
        name = different[0]
        raise UserError(
            f"{files.option} is no Inception v3 of FID: {name} has the shape "
            f"{given.get(name, 'of no tensor')} there and {expected.get(name, 'of no tensor')} "
            f"in the network ({len(different)} differ); name the file "
            "pt_inception-2015-12-05-6726825d.pth, or its tensors as safetensors."
        )
    network.load_state_dict(tensors, assign=True)
    return network.requires_grad_(False).float().eval()


def _resized(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Resize uint8 images, bicubic with antialiasing as PIL does, round to bytes, and normalise."""
    resized = (
        interpolate(images.float(), (size, size), mode="bicubic", antialias=True)
        .round()
        .clamp(0, 255)
        / 255
    )
    offsets, scales = (
        torch.tensor(each, device=images.device).view(3, 1, 1) for each in (mean, std)
    )
    return (resized - offsets) / scales
