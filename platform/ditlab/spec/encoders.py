"""Frozen encoders of captions and images, and autoencoders (`encoders` in an experiment)."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field

from ditlab.spec.values import Nonempty
from ditlab_models.contract import ANY, BatchField, Spec

Place = Nonempty
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

TEXT = ("text", "text_mask", "text_pooled")
"""Fields that an encoder of captions makes."""
IMAGE = "image_features"
"""The field that an encoder of images makes, of the field `image`."""
LATENTS = "latents"
"""Column of an autoencoder's posterior, of which the field `image` is drawn in place of pixels."""


class Scorer(Spec):
    """Trained causal language model, as transformers saves it, under which the perplexity of drawn
    text is measured.

    It needs the library transformers: `pip install 'ditlab[encoders]'`.
    """

    model: Place
    """Folder of the model and its tokeniser (GPT-2 large, in most papers). Nothing is downloaded:
    fetch it with `hf download openai-community/gpt2-large --local-dir FOLDER`."""
    sha256: Sha256 | None = None
    """SHA-256 that its files must have, as `ditlab evaluate` prints it; null: any, and the
    measurement records it.
    """


class Encoders(Spec):
    """Trained networks that make features for a model that reads them, where the data hold none.
    They are not trained.

    Those of captions and images need the library transformers: `pip install 'ditlab[encoders]'`.
    """

    text: Place | None = None
    """Encoder of captions: a causal language model with its tokeniser, as transformers saves them
    (Qwen3); a folder, or a name on the Hugging Face hub. Its hidden size is model.width. Null:
    captions are encoded beforehand, or by the model itself."""
    image: Place | None = None
    """Encoder of images: a DINOv3 vision transformer, as transformers saves it; a folder, or a name
    on the Hugging Face hub. Its patches are the model's. Null: images are encoded beforehand, or
    the loss needs no features of them."""
    autoencoder: Place | None = None
    """AutoencoderKL as diffusers saves it, a folder or hf://OWNER/NAME[@REVISION], to train on
    latents. Each step draws them of the posterior that `ditlab data encode STORE --autoencoder`
    keeps in the data, by the same weights; samples are decoded for pictures and metrics, in
    float32. model.channels and model.image_size are those of latents. Needs `pip install
    'ditlab[hub]'`. Null: images are pixels."""
    cache: Annotated[int, Field(ge=0)] = 4096
    """Captions, and images, whose features are kept in each worker's memory, those seen last; 0
    keeps none. A 256x256 image in patches of 16 takes 393 kB in bf16 at 768 features a patch, and
    one of 1024x1024 16 times that."""
    compile: bool = False
    """Compile the encoders with torch.compile: slow to begin with, faster after."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Type that the encoders compute in."""

    def check(self, fields: Collection[BatchField], family: str) -> None:
        """Raise ValueError for an encoder whose features are not used; `fields` are those of model
        and loss.
        """
        names = {field.name for field in fields}
        if self.text is not None and not names & {*TEXT}:
            raise ValueError(
                f"encoders.text={self.text} is used by nothing, as this model "
                f"(model.family={family}) reads no features of captions; set encoders.text to "
                "null."
            )
        if self.autoencoder is not None and not any(
            field.name == "image" and len(field.shape) == 3 and ANY not in field.shape
            for field in fields
        ):
            raise ValueError(
                f"encoders.autoencoder={self.autoencoder} is used by nothing, as this model "
                f"(model.family={family}) draws no images of one size from latents; set "
                "encoders.autoencoder to null."
            )
        is_rgb = any(len(field.shape) == 3 and field.shape[0] == 3 for field in fields)
        draws_rgb = is_rgb or self.autoencoder is not None  # measured by quality/...
        if self.image is not None and IMAGE not in names and not draws_rgb:
            raise ValueError(
                f"encoders.image={self.image} is used by nothing, as this model "
                f"(model.family={family}) draws no RGB images and its loss reads no features "
                "of any; set encoders.image to null."
            )

    def content(self) -> dict[str, Any]:
        """Return the fields that decide the features; empty where no encoder is named."""
        found: dict[str, Any] = {}
        if self.text is not None or self.image is not None:
            found = self.model_dump(mode="json", include={"text", "image", "precision"})
        if self.autoencoder is None:
            return found
        return {**found, "autoencoder": self.autoencoder}
