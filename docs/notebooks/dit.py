# %% [markdown]
# # DiT: a transformer that draws digits
#
# A diffusion transformer (Peebles and Xie 2023,
# [arXiv:2212.09748](https://arxiv.org/abs/2212.09748)) learns the 8 x 8 handwritten digits that
# scikit-learn carries, by class. Nothing is downloaded, and two CPU cores are enough.
#
# Every number below is printed by this notebook; the text has none that it did not compute.

# %%
import os
from pathlib import Path

import ditlab

os.chdir(
    next(
        folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "experiments").is_dir()
    )
)
spec = ditlab.load("experiments/digits/dit_class.yaml")
spec

# %% [markdown]
# ## What it learns
#
# With an image $x_0$, noise $x_1 \sim \mathcal{N}(0, I)$ and a time $t$ in $[0, 1]$, training mixes
# the two along a straight line, and the network regresses the line's velocity:
#
# $$x_t = (1 - t)\, x_0 + t\, x_1, \qquad v = x_1 - x_0, \qquad L = E\, \lVert v_\theta(x_t, t, y) -
# v \rVert^2 / n$$
#
# $n$ is the number of pixels and $y$ the class, left out of a tenth of the samples. Sampling starts
# with noise at $t = 1$ and follows $v_\theta$ back to $t = 0$. Guidance of $w$ follows $v_\theta(x,
# t) + w\, (v_\theta(x, t, y) - v_\theta(x, t))$ instead.
#
# The network cuts the image into patches of 2 x 2 pixels, one token each. Its parts, and their
# parameters:

# %%
count = ditlab.count_parameters(spec)
for name, number in {**count.components, "total": count.total}.items():
    print(f"{name:<16} {number:>10,}")

# %% [markdown]
# ## A smaller and shorter one
#
# `replace_all` gives a new spec, validated as a whole; the first one stays as it is.

# %%
small = spec.replace_all(
    {
        "name": "notebook-dit",
        "model.width": 64,
        "model.depth": 3,
        "batch.size": 64,
        "optimizer.lr": 2e-3,
        "training.steps": 600,
        "training.ema.decay": 0.99,
        "evaluation": {"every": 200, "samples": 20, "limit": 128},
        "checkpoint.every": 600,
        "tracking.system_metrics": False,
    }
)
plan = ditlab.plan_training(small, local=True)  # every check, and nothing starts
print(f"{plan.num_parameters:,} parameters, {plan.total_steps:,} steps")

# %% [markdown]
# `local=True` trains in this process; without it, Ray workers on this machine do.

# %%
run = ditlab.train(small, local=True).run
run

# %% [markdown]
# ## Curves
#
# **Look at the first loss.** The last layer starts at zero, so an untrained network predicts 0 and
# its loss is $1 + E[x_0^2]$. A first loss that is far from that tells of pixels in another range
# than $[-1, 1]$.

# %%
from sklearn.datasets import load_digits

pixels = load_digits().images / 8 - 1
losses = run.metrics("train/loss")["train/loss"].to_pylist()
print(f"expected {1 + (pixels**2).mean():.3f}, first {losses[0]:.3f}, last {losses[-1]:.3f}")

# %%
run.plot()

# %% [markdown] **Look at the held-out curve beside the training loss.** `eval/velocity` uses fixed
# times and noise, so it can be compared between runs. It must fall with the training loss; where it
# rises while that falls, the network memorises.
#
# The error by quarter of $t$: near $t = 0$ the network has to find noise in a nearly clean image,
# near $t = 1$ an image in nearly pure noise.

# %%
run.plot("eval/velocity_t0", "eval/velocity_t1", "eval/velocity_t2", "eval/velocity_t3")

# %% [markdown]
# ## Samples
#
# All classes in turn, each below its image. **Look for** strokes that close, and for the right
# digit.

# %%
run.sample(30, seed=0)

# %% [markdown] Guidance makes the class clearer and the samples more alike: the same noise with a
# weight of 1 (none) and of 4.

# %%
run.sample(10, label=7, guidance=1.0, seed=0)

# %%
run.sample(10, label=7, guidance=4.0, seed=0)

# %% [markdown]
# ## Figures
#
# Every kind that this run has; `ditlab figures` writes all of them.

# %%
figures = run.figures()
figures.kinds

# %% [markdown]
# From noise to digits. **Look at** how early the class is decided.

# %%
figures.draw("trajectory")

# %% [markdown] The error over $t$, beside two predictors without a network. **Look for** the
# distance to the one that knows each pixel's mean and spread: that much the network has learned
# about digits.

# %%
figures.draw("loss_by_time")

# %% [markdown] Which patches a patch attends to, by layer and head. **Look for** heads that look
# near by and heads that look far away; maps that are all even have learned nothing.

# %%
figures.draw("attention")

# %% [markdown] Scale and shift of each block over time: how the network treats noise and nearly
# clean images differently.

# %%
figures.draw("adaln")

# %% [markdown]
# ## On all held-out digits
#
# Added to the run, where `run.metrics()`, `ditlab compare` and the MLflow UI find it.

# %%
for name, value in run.evaluate().metrics.items():
    print(f"{name:<24} {value:.4f}")

# %% [markdown]
# ## Next
#
# The whole experiment is `ditlab train experiments/digits/dit_class.yaml`. Two runs side by side:
# `ditlab.compare(run, other)`. The runs of this folder, as a table:

# %%
ditlab.find_runs(name="notebook-dit")[:5]
