# %% [markdown]
# # DLM: text by discrete diffusion
#
# A transformer that learns to undo a process in which tokens jump to random others (score entropy,
# Lou et al. 2024, [arXiv:2310.16834](https://arxiv.org/abs/2310.16834)). The text is the
# documentation that Python carries, byte by byte.
#
# Every number below is printed by this notebook. A few hundred steps teach it the commonest letters
# and little more: what it shows is the way, not the result.

# %%
import os
from pathlib import Path

import ditlab

os.chdir(
    next(
        folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "experiments").is_dir()
    )
)
spec = ditlab.load("experiments/dlm/small.yaml")
spec

# %% [markdown]
# ## What it learns
#
# Each token of a vocabulary of $V$ jumps, independently, at rate 1 a unit of noise $\sigma$, to a
# token drawn uniformly. After noise $\sigma$ it has been drawn anew with probability $p = 1 -
# e^{-\sigma}$:
#
# $$q(x_t = x_0) = 1 - p\, \frac{V - 1}{V}, \qquad q(x_t = y) = \frac{p}{V} \quad (y \ne x_0)$$
#
# The network gives a log score $l_y$ for every token $y$ in the place of $x$: its estimate of $\ln
# q(y) / q(x)$. With the true ratio $s_y$, given $x_0$, a token's loss is
#
# $$\frac{1}{V} \sum_{y \ne x} \left( e^{l_y} - s_y\, l_y + s_y (\ln s_y - 1) \right)$$
#
# Weighted by $d\sigma/dt$ and integrated over $t$, plus two terms for the ends, it bounds the
# negative log-likelihood: `eval/bound`, in nats a token. An untrained network's bound is $\ln V$.

# %%
count = ditlab.count_parameters(spec)
for name, number in {**count.components, "total": count.total}.items():
    print(f"{name:<16} {number:>10,}")

# %% [markdown]
# ## A smaller and shorter one

# %%
small = spec.replace_all(
    {
        "name": "notebook-dlm",
        "model": {"length": 64, "width": 96, "depth": 3, "num_heads": 3},
        "data.length": 64,
        "training": {"steps": 400, "precision": "fp32", "ema": {"decay": 0.99}},
        "schedule.warmup": 40,
        "engine.compile": False,
        "evaluation": {"every": 100, "samples": 2, "limit": 64},
        "checkpoint.every": 400,
        "sampling.steps": 32,
        "tracking.system_metrics": False,
    }
)
run = ditlab.train(small, local=True).run
run

# %% [markdown]
# ## Curves
#
# **Look at the first value of the bound**: it must be near $\ln V$. Then at how far it falls below
# the `unigram` line further down.

# %%
import math

bounds = run.metrics("eval/bound")["eval/bound"].to_pylist()
print(
    f"ln V {math.log(small.model.vocabulary):.3f}, first bound {bounds[0]:.3f}, last "
    f"{bounds[-1]:.3f} nats a token"
)

# %%
run.plot()

# %% [markdown]
# ## Samples
#
# All positions at once, from uniform tokens. The last lines show how noise becomes the first
# sample. **Look for** runs of letters that could be words; after so few steps, spaces and common
# letters in the right shares are what there is.

# %%
run.sample(2, seed=0)

# %% [markdown]
# A prompt may stand anywhere, also at the end; the rest is filled in around it.

# %%
run.sample(2, placed=[(0, "The "), (-6, "value.")], seed=0)

# %% [markdown]
# ## Beside simpler models
#
# On the same held-out rows: models of single bytes and of pairs of bytes, which are exact. **If the
# network's figure is above the bigram's, nothing shows that it uses more than the byte before.**
# `rows` takes the first held-out rows alone, and adds nothing to the run.

# %%
found = run.evaluate(rows=128)
for name, value in found.metrics.items():
    if name.endswith("bits_per_byte"):
        print(f"{name:<44} {value:7.3f}")

# %%
next(iter(found.plots.values()))

# %% [markdown]
# ## Figures

# %%
figures = run.figures()
figures.kinds

# %% [markdown] The loss by noise. **Look for** where it is largest: little noise leaves little to
# learn, and with all noise there is nothing to learn from.

# %%
figures.draw("loss_by_noise")

# %% [markdown]
# One text, noised more and more, and what the network makes of it at each level.

# %%
figures.draw("denoising")

# %% [markdown]
# ## Next
#
# The whole experiment is `ditlab train experiments/dlm/small.yaml`;
# `experiments/dlm/small_block.yaml` writes block by block. Your own text: `ditlab data import
# text`.
