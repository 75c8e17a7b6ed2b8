"""Pipeline of diffusers for its own DiT without an autoencoder, which samples as DiTLab does.

`DiTPipeline` decodes latents by an AutoencoderKL; here the network's output is the image, or the latents themselves.

    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained("FOLDER", trust_remote_code=True)
    pipeline(4, seed=0).images[0].save("image.png")
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput
from torch import Tensor


class TrainedDiTPipeline(DiffusionPipeline):
    """Images from noise by DDPM or DDIM over some of the timesteps, with classifier-free guidance."""

    def __init__(
        self, transformer: Any, scheduler: Any, sampling: Mapping[str, Any] | None = None, seed: int = 0,
        classes: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """`sampling`: the run's section `sampling`; `seed`: the run's; `classes`: those that its data hold."""
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)
        self.register_to_config(sampling=dict(sampling or {}), seed=seed, classes=list(classes or ()))

    @torch.no_grad()
    def __call__(
        self, num: int = 1, *, label: int | None = None, seed: int | None = None, noise: Tensor | None = None,
        output_type: str = "pil", **sampling: Any,
    ) -> ImagePipelineOutput:  # fmt: skip
        """Draw `num` images of a class, or of each class in turn; `noise` is what they begin with, in place of the
        seed's, and `sampling` are fields of the section `sampling` that change: solver, steps, eta, guidance.

        `output_type`: "pil"; "np", (num, height, width, channels) in [0, 1]; "pt", (num, channels, height, width) in
        the model's own range, [-1, 1].
        """
        chosen = {**self.config.sampling, **sampling}
        device, config = self._execution_device, self.transformer.config
        classes = self.config.classes or range(config.num_embeds_ada_norm)
        labels = torch.tensor([classes[i % len(classes)] if label is None else label for i in range(num)])
        generators = _generators(self.config.seed if seed is None else seed, num, device)
        shape = (config.in_channels, config.sample_size, config.sample_size)
        x = torch.stack([torch.randn(shape, generator=each, device=device) for each in generators])
        x = x if noise is None else noise.to(x)
        last = self.scheduler.config.num_train_timesteps - 1
        steps = [round(t) for t in torch.linspace(last, 0, chosen["steps"], dtype=torch.float64).tolist()]
        self.scheduler.set_timesteps(timesteps=steps)
        for t, s in zip(steps, [*steps[1:], -1], strict=True):
            output = self._predict(x, t, labels.to(device), chosen)
            if chosen["solver"] == "ddpm":
                x = self.scheduler.step(output, t, x, generator=generators).prev_sample
            else:
                x = self._ddim(output[:, : shape[0]], x, t, s, chosen["eta"], generators)
        if output_type == "pt":
            return ImagePipelineOutput(images=x.cpu())
        images = (x.float().clamp(-1, 1) / 2 + 0.5).permute(0, 2, 3, 1).cpu().numpy()
        return ImagePipelineOutput(images=self.numpy_to_pil(images) if output_type == "pil" else images)

    def _predict(self, x: Tensor, t: int, labels: Tensor, chosen: Mapping[str, Any]) -> Tensor:
        """Predict the noise, guided, and what a learned variance is read from, not guided."""
        time, scale = torch.full((len(x),), t, device=x.device), chosen["guidance"]
        if scale == 1:
            output: Tensor = self.transformer(x, time, labels).sample
            return output
        null = torch.full_like(labels, self.transformer.config.num_embeds_ada_norm)
        both = self.transformer(torch.cat((x, x)), torch.cat((time, time)), torch.cat((labels, null))).sample
        own, other = both.chunk(2)
        num = chosen["guided_channels"] or x.shape[1]
        return torch.cat((other[:, :num] + scale * (own[:, :num] - other[:, :num]), own[:, num:]), dim=1)

    def _ddim(self, noise: Tensor, x: Tensor, t: int, s: int, eta: float, generators: list[torch.Generator]) -> Tensor:
        """Step from t to s, -1 being the end (Song et al. 2021, arXiv:2010.02502, eq. 12 and 16)."""
        bars = self.scheduler.alphas_cumprod.double()
        bar_t, bar_s = float(bars[t]), float(bars[s]) if s >= 0 else 1.0
        x0 = (x - (1 - bar_t) ** 0.5 * noise) / bar_t**0.5
        std = eta * ((1 - bar_s) / (1 - bar_t) * (1 - bar_t / bar_s)) ** 0.5
        x = bar_s**0.5 * x0 + max(0.0, 1 - bar_s - std**2) ** 0.5 * noise
        if std:
            draws = [torch.randn(x.shape[1:], generator=each, device=each.device) for each in generators]
            x = x + std * torch.stack(draws).to(x)
        return x


def _generators(seed: int, num: int, device: torch.device) -> list[torch.Generator]:
    """Make the generator of each sample, as DiTLab does."""
    digest = hashlib.blake2b(f"{seed}/samples".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
    seeds = [int(torch.randint(2**62, (), generator=generator, device=device)) for _ in range(num)]
    return [torch.Generator(device).manual_seed(each) for each in seeds]
