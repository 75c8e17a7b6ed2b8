# %% [markdown]
# # Region: filling in unmeasured regions of a genome
#
# A transformer over consecutive regions of a chromosome. Each region has a score for every motif
# and its accessibility; some regions are hidden, and the network predicts them from the others. The
# data here are generated with planted modules of motifs, so that the best possible prediction is
# known.
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
spec = ditlab.load("experiments/region/small.yaml")
spec

# %% [markdown]
# ## What it learns
#
# A window is a matrix $x$ of regions by features. A mask $m$ hides each region with a fixed chance;
# a hidden region is replaced by one learned token. The loss is the squared error over all $F$
# features of the hidden regions:
#
# $$L = E\left[ \frac{1}{F \sum_i m_i} \sum_i m_i\, \lVert \hat{x}_i - x_i \rVert^2 \right]$$
#
# Its best solution is the conditional mean $\hat{x}_i = E[x_i \mid x_j, m_j = 0]$. With
# `corruption: ddpm` hidden regions are noised instead, $x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1 -
# \bar\alpha_t}\, \epsilon$, and possible values can be drawn.
#
# **Positions decide what can be learned.** Without them (`positions: none`, as published), nothing
# distinguishes two hidden regions of a window, and both get the same prediction.

# %%
count = ditlab.count_parameters(spec)
for name, number in {**count.components, "total": count.total}.items():
    print(f"{name:<16} {number:>10,}")

# %% [markdown]
# ## A smaller and shorter one

# %%
small = spec.replace_all(
    {
        "name": "notebook-region",
        "model": {"num_features": 16, "num_regions": 32, "width": 64, "depth": 3},
        "data": {"motifs": 15, "regions": 32},
        "optimizer.lr": 2e-3,
        "training.steps": 600,
        "evaluation": {"every": 100, "samples": 3, "limit": 256},
        "checkpoint.every": 600,
        "tracking.system_metrics": False,
    }
)
run = ditlab.train(small, local=True).run
run

# %% [markdown]
# ## Curves

# %%
run.plot()

# %% [markdown] `eval/r2` is the share of the variance that the prediction explains: 0 for the mean,
# below 0 for worse. `eval/spread` is how much the predictions of a window's hidden regions differ:
# **look at it first**; at 0, all of them are one and the same.

# %%
run.plot("eval/r2", "eval/spread")

# %% [markdown]
# ## Filled in
#
# Three held-out windows, a row of pictures each: as measured, as the network sees it (grey regions
# are hidden), and filled in. **Compare the first with the last**: the network predicts averages, so
# hidden regions are paler, and show a little of every feature that is common in the window. Where
# neighbours tell more, a hidden region differs from the next one.

# %%
run.sample(3, seed=0)

# %% [markdown]
# The same as a table with one row for each region: its columns, and how many rows it has.

# %%
drawn = run.sample(3, seed=0)
list(drawn.table)[:8], len(drawn.table["window"])

# %% [markdown]
# ## Beside the baselines
#
# The network, three baselines and the best possible prediction, on the same masks of held-out
# windows. **Look at** where the network stands between `baseline/ridge` (a regression on the
# regions beside it) and `reference/optimal`.

# %%
found = run.evaluate()
for name, value in found.metrics.items():
    if name.endswith("/r2/r50"):  # half of the regions hidden
        print(f"{name:<44} {value:8.4f}")

# %%
next(iter(found.plots.values()))

# %% [markdown]
# ## Figures

# %%
figures = run.figures()
figures.kinds

# %% [markdown] Which regions a region attends to. **Look for** heads that look at neighbours: a
# module of motifs spans several regions.

# %%
figures.draw("attention")

# %% [markdown]
# Noise by timestep, for `corruption: ddpm`: what remains of a hidden region's signal.

# %%
figures.draw("noise_schedule")

# %% [markdown]
# ## Next
#
# `experiments/region/small_ddpm.yaml` draws possible values in the place of their mean;
# `experiments/region/small_no_positions.yaml` shows what is lost without positions. Real data come
# by `ditlab data import get`.
