"""A sweep as Ray's guides write it: Tune's trials each run a TorchTrainer of one CPU worker; MLflow
by Tune's logger.

    python benchmarks/plain/ray_sweep.py FOLDER TRIALS

The process that leads the trials is kept (`reuse_actors`). Prints the times of the trials' first
steps as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train, tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback

STEPS = 6


def train_model(config: dict[str, Any]) -> None:
    """Six steps of a small network, in the worker; one report, with the held-out loss and a
    checkpoint of 10 KB.
    """
    torch.manual_seed(0)
    model = prepare_model(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 64))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    started = time.time()
    for _ in range(STEPS):
        x = torch.randn(32, 64)
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x = torch.randn(64, 64)
        held_out = (model(x) - x).square().mean().item()
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"model": model.state_dict(), "step": STEPS}, Path(folder, "checkpoint.pt"))
        metrics = {"loss": loss.item(), "held_out": held_out, "started": started}
        train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


def trial(config: dict[str, Any]) -> None:
    """Train a trial's worker."""
    run = train.RunConfig(
        name=f"trial-{tune.get_context().get_trial_id()}",
        storage_path=config["folder"],
        callbacks=[TuneReportCallback()],
    )
    TorchTrainer(
        train_model,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=run,
    ).fit()


def main() -> None:
    folder, trials = str(Path(sys.argv[1]).absolute()), int(sys.argv[2])
    ray.init(include_dashboard=False, log_to_driver=False)
    logger = MLflowLoggerCallback(
        tracking_uri=f"sqlite:///{folder}/mlflow.db", experiment_name="sweep"
    )
    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0, "memory": 2**20}),
        param_space={"lr": tune.loguniform(1e-4, 1e-2), "folder": folder},
        tune_config=tune.TuneConfig(
            metric="held_out",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=folder, name="sweep", callbacks=[logger], verbose=0),
    ).fit()
    assert results.num_errors == 0 and len(results) == trials
    print(json.dumps(sorted(each.metrics["started"] for each in results)))


if __name__ == "__main__":
    main()
