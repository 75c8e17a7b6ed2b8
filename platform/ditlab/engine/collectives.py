"""The time of DeepSpeed's collectives in forward and backward passes, on a clock of phases.

A worker that waits for a slow one waits there: without that time, its passes are its own work. Replaces methods of
DeepSpeed's objects by timed ones; `tests/ditlab/engine/test_phases.py` fails when their names move.
"""

from typing import Any

from ditlab.engine.phase_clock import PhaseClock


def time_collectives(engine: Any, stage: int, clock: PhaseClock) -> None:
    """Count the reduction of gradients, and with ZeRO-3 the gathering of parameters, as the phase `reduce`."""
    engine.allreduce_gradients = clock.reducing(engine.allreduce_gradients)
    optimizer = engine.optimizer
    if stage in (1, 2):
        optimizer.reduce_ipg_grads = clock.reducing(optimizer.reduce_ipg_grads)
    elif stage == 3:
        reduce = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
        setattr(optimizer, reduce, clock.reducing(getattr(optimizer, reduce)))
        coordinator = optimizer.parameter_offload.get_param_coordinator()
        coordinator.fetch_sub_module = clock.reducing(coordinator.fetch_sub_module)
