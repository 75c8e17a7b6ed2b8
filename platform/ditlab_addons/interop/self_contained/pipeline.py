"""Pipeline of diffusers that samples as DiTLab does.

from diffusers import DiffusionPipeline

pipeline = DiffusionPipeline.from_pretrained("FOLDER", trust_remote_code=True)
pipeline(4, seed=0).images[0].save("image.png")
"""

from __future__ import annotations

from typing import Any

from diffusers import DiffusionPipeline, ImagePipelineOutput


class TrainedPipeline(DiffusionPipeline):
    """Images from noise."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.register_modules(network=network)

    def __call__(
        self, num: int = 1, *, output_type: str = "pil", **options: Any
    ) -> ImagePipelineOutput:
        """Draw `num` images (of each prompt). `options`: label, prompts, seed, noise, conditions,
        encode, batch, and fields of the run's section `sampling`, such as steps=50.

        `output_type`: "pil"; "np", (num, height, width, channels) in [0, 1]; "pt", (num, channels,
        height, width) in the model's own range, [-1, 1].
        """
        values = self.network.draw(num, **options).values
        if output_type == "pt":
            return ImagePipelineOutput(images=values)
        images = (values.float().clamp(-1, 1) / 2 + 0.5).permute(0, 2, 3, 1).numpy()
        return ImagePipelineOutput(
            images=self.numpy_to_pil(images) if output_type == "pil" else images
        )
