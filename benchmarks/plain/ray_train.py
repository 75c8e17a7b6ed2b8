"""Ray Train's hello world: one CPU worker takes a step of torch, and writes the time before it to
FIRST_STEP.
"""

import os
import time
from pathlib import Path

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train_step() -> None:
    """One step of a linear layer, in the worker."""
    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(32, 64)
    Path(os.environ["FIRST_STEP"]).write_text(str(time.time()))
    (model(x) - x).square().mean().backward()
    optimizer.step()


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    TorchTrainer(train_step, scaling_config=ScalingConfig(num_workers=1)).fit()
