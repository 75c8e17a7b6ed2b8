# %% [markdown]
# # U-Net: the convolutional network beside the transformer
#
# A U-Net of three resolutions (after Ronneberger et al. 2015,
# [arXiv:1505.04597](https://arxiv.org/abs/1505.04597)) learns the same digits as the
# [DiT](dit.ipynb), with the same loss and the same sampler. What differs is the network alone, so
# the two can be compared.
#
# Every number below is printed by this notebook.

# %%
import os
from pathlib import Path

import ditlab

os.chdir(
    next(
        folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "experiments").is_dir()
    )
)
spec = ditlab.load("experiments/digits/unet_class.yaml")
spec

# %% [markdown]
# ## What it learns
#
# The velocity of a straight line from an image $x_0$ to noise $x_1$:
#
# $$x_t = (1 - t)\, x_0 + t\, x_1, \qquad L = E\, \lVert v_\theta(x_t, t, y) - (x_1 - x_0) \rVert^2
# / n$$
#
# Convolutions lead down to a quarter of the resolution and up again, where each level is joined
# with the one on the way down. Time and class enter each block as a shift of its channels:
#
# $$h \leftarrow \text{SiLU}(\text{GroupNorm}(\text{conv}(h)) + W\, \text{SiLU}(c))$$

# %%
count = ditlab.count_parameters(spec)
for name, number in {**count.components, "total": count.total}.items():
    print(f"{name:<16} {number:>10,}")

# %% [markdown]
# ## A smaller and shorter one, and a transformer beside it
#
# Both are trained for the same number of steps, on the same batches: the order of samples, the
# times and the noise are a function of the seed.

# %%
shorter = {
    "batch.size": 64,
    "optimizer.lr": 2e-3,
    "training.steps": 400,
    "training.ema.decay": 0.99,
    "evaluation": {"every": 100, "samples": 20, "limit": 128},
    "checkpoint.every": 400,
    "tracking.system_metrics": False,
}
small = spec.replace_all(
    {"name": "notebook-unet", "model.width": 32, "model.time_width": 64, **shorter}
)
other = ditlab.load("experiments/digits/dit_class.yaml").replace_all(
    {"name": "notebook-unet-dit", "model.width": 64, "model.depth": 3, **shorter}
)
for each in (small, other):
    print(f"{each.name:<18} {ditlab.count_parameters(each).total:>9,} parameters")

# %%
run = ditlab.train(small, local=True).run
run

# %%
dit = ditlab.train(other, local=True).run
ditlab.find_runs()[:2]

# %% [markdown]
# ## Curves
#
# Unlike the transformer's, an untrained U-Net's prediction is not 0, since its head keeps torch's
# initialisation: **look at the first losses**. Then at the last, and at the speed, which is not the
# same either.

# %%
for each in (run, dit):
    table = each.metrics("train/loss", "train/samples_per_second").to_pydict()
    losses = [value for value in table["train/loss"] if value is not None]
    speeds = sorted(value for value in table["train/samples_per_second"] if value is not None)
    print(
        f"{each.name:<18} loss {losses[0]:.3f} to {losses[-1]:.3f}, "
        f"{speeds[len(speeds) // 2]:,.0f} samples/s (median)"
    )

# %%
run.plot()

# %% [markdown] The held-out error of both at the same steps: **rank by this one**, not by the
# training loss, which has other times and noise in each step.

# %%
columns = {each.name: each.metrics("eval/velocity").to_pydict() for each in (run, dit)}
for step, *values in zip(
    columns[run.name]["step"], *(each["eval/velocity"] for each in columns.values()), strict=True
):
    print(
        f"step {step:>4}",
        *(f"{name} {value:.4f}" for name, value in zip(columns, values, strict=True)),
    )

# %% [markdown]
# ## Samples
#
# The same seed gives both networks the same noise. **Look for** the same digit in the same place,
# drawn in two hands.

# %%
run.sample(20, seed=0)

# %%
dit.sample(20, seed=0)

# %% [markdown]
# ## Figures

# %%
figures = run.figures()
figures.kinds

# %%
figures.draw("trajectory")

# %% [markdown] The shift of each block's channels over time. **Look for** blocks whose shift
# changes with $t$: a flat map means that the block does the same to noise and to a nearly clean
# image.

# %%
figures.draw("time_shift")

# %% [markdown]
# ## Next
#
# `ditlab.compare(run, dit)` writes a page with the curves, samples, speed and spec differences of
# both. The whole experiments are `experiments/digits/unet_class.yaml` and
# `experiments/digits/dit_class.yaml`.
