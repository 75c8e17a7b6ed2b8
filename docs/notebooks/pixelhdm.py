# %% [markdown]
# # PixelHDM: pictures from captions
#
# Text to image on pixels, without an autoencoder, in two paths: a transformer over patches and text
# decides the content, a light one over pixels adds the detail. The data are scikit-learn's digits
# in seven colours, with captions such as "a red seven".
#
# Every number below is printed by this notebook. It trains a very small network for a few hundred
# steps: expect the colour asked for, and shapes that are hardly digits yet.

# %%
import os
from pathlib import Path

import ditlab

os.chdir(
    next(
        folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "experiments").is_dir()
    )
)
spec = ditlab.load("experiments/pixelhdm/small.yaml")
spec

# %% [markdown]
# ## What it learns
#
# Time runs the other way round than in the label-conditioned families: noise $\epsilon$ at $t = 0$,
# the image $x$ at $t = 1$.
#
# $$z_t = t\, x + (1 - t)\, \epsilon, \qquad v = x - \epsilon$$
#
# The loss has three components, of which this experiment uses two: the squared error of $v$, and
# the same in the frequencies of 8 x 8 blocks, weighed as JPEG weighs them, by what an eye sees:
#
# $$L = E\, \lVert v_\theta - v \rVert^2 + \lambda\, E\, \lVert W \odot \text{DCT}(v_\theta - v)
# \rVert^2$$
#
# Captions are read byte by byte by a text encoder that is trained along. A tenth of them is
# dropped, for guidance.

# %%
count = ditlab.count_parameters(spec)
for name, number in {**count.components, "total": count.total}.items():
    print(f"{name:<16} {number:>10,}")

# %% [markdown]
# ## A smaller and shorter one

# %%
small = spec.replace_all(
    {
        "name": "notebook-pixelhdm",
        "model": {"patch_depth": 3, "pixel_depth": 1, "text_depth": 1},
        "batch.size": 32,
        "optimizer.lr": 2e-3,
        "schedule.warmup": 30,
        "training.steps": 400,
        "training.ema.decay": 0.98,
        "evaluation": {"every": 100, "samples": 7, "limit": 64, "quality": 0},
        "checkpoint.every": 400,
        "sampling.steps": 10,
        "tracking.system_metrics": False,
    }
)
run = ditlab.train(small, local=True).run
run

# %% [markdown]
# ## Curves
#
# **Look at the components apart**: the frequency loss has another scale than the velocity loss, and
# a weight that drowns one of them shows here first.

# %%
run.plot()

# %%
run.plot("train/velocity", "train/frequency")

# %% [markdown]
# ## Samples
#
# Two of each caption. **Look at the colour first**, then for the digit.

# %%
prompts = ["a red seven", "a green two", "a blue four", "a yellow zero"]
run.sample(2, prompts=prompts, seed=0)

# %% [markdown] The same noise without guidance. **Compare**: guidance makes the colour purer, and
# samples of one caption more alike.

# %%
run.sample(2, prompts=prompts, guidance=1.0, seed=0)

# %% [markdown]
# ## Figures

# %%
figures = run.figures()
figures.kinds

# %%
figures.draw("trajectory")

# %% [markdown]
# ## Next
#
# The whole experiment is `ditlab train experiments/pixelhdm/small.yaml`. `ditlab evaluate
# pixelhdm-small --quality 200` asks classifiers of digit and colour whether the pictures are what
# the captions say.
