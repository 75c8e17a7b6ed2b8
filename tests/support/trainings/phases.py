"""Groups of workers of which one is slow, and where each one's time went."""

import json
import tempfile
import time
from pathlib import Path

from ditlab.engine.engine import Engine
from ditlab.engine.phase_clock import PHASES, PhaseClock
from ditlab.spec.experiment import class_for
from ditlab.training.trainer import train
from support.trainings.engines import Pass, module_for, run_step
from support.trainings.groups import joined, run_group
from support.trainings.workers import Recorder, tiny, training_run


def phases_by_stage(stages, seconds):
    """(Seconds by phase, wall time) of two workers at each ZeRO stage, the second worker slow by
    `seconds` a pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_group(_time_engines, (list(stages), seconds, folder), 2)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    return {stage: [tuple(each[str(stage)]) for each in found] for stage in stages}


def train_with_slow_worker(experiment, home, folder, seconds):
    """Report of the first of two workers, of which the second is slow by `seconds` a pass."""
    folder.mkdir(parents=True)
    run_group(_train_slowly, (experiment.to_dict(), str(home), str(folder), seconds), 2)
    values, tagged, warnings = json.loads((folder / "left.json").read_text())
    return Recorder(
        values={int(step): each for step, each in values.items()}, tagged=tagged, warnings=warnings
    )


def _time_engines(rank, stages, seconds, folder):
    left = {}
    with joined(rank, 2, folder) as place:
        for stage in stages:
            clock, module = PhaseClock(), module_for(tiny())
            module.register_forward_pre_hook(lambda *_: time.sleep(seconds * rank))
            engine = Engine(module, tiny(engine__zero__stage=stage), place, 4, 2, clock=clock)
            passes = [Pass(2 * rank), Pass(2 * rank + 1)]
            run_step(engine, 0, passes)  # warms up
            clock.restart()
            begin = time.perf_counter()
            for step in (1, 2):
                run_step(engine, step, passes)
            found, wall = clock.read_rest().seconds, time.perf_counter() - begin
            left[stage] = (dict(zip(PHASES, found, strict=True)), wall)
            engine.close()
        Path(folder, f"{rank}.json").write_text(json.dumps(left))


def _train_slowly(rank, spec, home, folder, seconds):
    recorder = Recorder()
    plain = Engine.forward_backward

    def slow(self, *inputs, **named):
        with self._clock.phase("forward"):
            time.sleep(seconds * rank)
        return plain(self, *inputs, **named)

    Engine.forward_backward = slow  # type: ignore[method-assign]
    with joined(rank, 2, folder) as place:
        run = training_run(class_for(spec).model_validate(spec), Path(home), Path(folder))
        train(run, place, recorder)
        if rank == 0:
            Path(folder, "left.json").write_text(
                json.dumps([recorder.values, recorder.tagged, recorder.warnings])
            )
