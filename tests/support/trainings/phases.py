"""Groups of workers of which one is slow, and where each one's time went."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ditlab.engine.distributed import Rank, current_rank
from ditlab.engine.engine import Engine
from ditlab.engine.phase_clock import PHASES, PhaseClock
from ditlab.home import Home
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.trainer import train
from support.trainings.engines import Pass, module_for, run_step
from support.trainings.groups import run_group
from support.trainings.workers import Recorder, tiny, training_run


def phases_by_stage(
    stages: Sequence[int], seconds: float, num_steps: int
) -> dict[int, list[tuple[dict[str, float], float]]]:
    """(Seconds by phase, wall time) of two workers at each ZeRO stage, the second worker slow by
    `seconds` a pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_group(_time_engines, (list(stages), seconds, num_steps, folder), 2)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    return {stage: [tuple(each[str(stage)]) for each in found] for stage in stages}


def train_with_slow_worker(
    experiment: Experiment, home: Path, folder: Path, seconds: float
) -> Recorder:
    """Report of the first of two workers, of which the second is slow by `seconds` a pass."""
    folder.mkdir(parents=True)
    run_group(_train_slowly, (experiment.to_dict(), str(home), str(folder), seconds), 2)
    left = json.loads((folder / "left.json").read_text())
    return Recorder(
        values={int(step): values for step, values in left["values"].items()},
        tagged=left["tagged"],
        warnings=left["warnings"],
    )


def _join(rank: int, folder: str) -> Rank:
    torch.set_num_threads(1)
    place = current_rank(False, rank, 2, rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    return place


def _time_engines(
    rank: int, stages: list[int], seconds: float, num_steps: int, folder: str
) -> None:
    place, left = _join(rank, folder), {}
    for stage in stages:
        clock, module = PhaseClock(), module_for(tiny())
        module.register_forward_pre_hook(lambda *_: time.sleep(seconds * rank))
        engine = Engine(module, tiny(engine__zero={"stage": stage}), place, 4, 2, clock=clock)
        run_step(engine, 0, [Pass(2 * rank), Pass(2 * rank + 1)])  # warms up
        clock.restart()
        begin = time.perf_counter()
        for step in range(1, 1 + num_steps):
            run_step(engine, step, [Pass(2 * rank), Pass(2 * rank + 1)])
        found, wall = clock.read_rest().seconds, time.perf_counter() - begin
        left[stage] = (dict(zip(PHASES, found, strict=True)), wall)
        engine.close()
    Path(folder, f"{rank}.json").write_text(json.dumps(left))
    torch.distributed.destroy_process_group()


def _train_slowly(rank: int, spec: dict[str, Any], home: str, folder: str, seconds: float) -> None:
    place, recorder = _join(rank, folder), Recorder()
    plain = Engine.forward_backward

    def slow(self: Engine, *inputs: Any, **named: Any) -> Any:
        with self._clock.phase("forward"):
            time.sleep(seconds * rank)
        return plain(self, *inputs, **named)

    Engine.forward_backward = slow  # type: ignore[method-assign]
    train(
        training_run(class_for(spec).model_validate(spec), Home(Path(home)).root, Path(folder)),
        place,
        recorder,
    )
    if rank == 0:
        left = {"values": recorder.values, "tagged": recorder.tagged, "warnings": recorder.warnings}
        Path(folder, "left.json").write_text(json.dumps(left))
    torch.distributed.destroy_process_group()
