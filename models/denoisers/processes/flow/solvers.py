"""Explicit Runge-Kutta solvers of dx/dt = velocity(x, t) on a given grid (Hairer, Norsett, Wanner, chapter II.1).

A solver takes `velocity(x, t)` with a scalar tensor t, the state x at times[0], and a monotone grid `times` (1-D, in
either direction: 1 to 0 where noise is at 1, 0 to 1 where it is at 0), and returns x at times[-1]. `record` is called
with the state after every step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from denoisers.processes.flow.linear_path import Velocity

StepCallback = Callable[[Tensor], None]
"""Called with the state after every step."""


def ignore(x: Tensor) -> None:
    """Record nothing."""


def euler(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """Euler's method, order 1: one evaluation a step."""
    for t, t_next in pairwise(times.unbind()):
        x = x + (t_next - t) * velocity(x, t)
        record(x)
    return x


def heun(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """Heun's method (trapezoidal), order 2: two evaluations in every step, the last one included."""
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        k2 = velocity(x + h * k1, t_next)
        x = x + h / 2 * (k1 + k2)
        record(x)
    return x


def heun_then_euler(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """Heun's method with an Euler step at the end (Karras et al. 2022, arXiv:2206.00364, algorithm 1), order 2.

    Never evaluates at the grid's last time. One step of order 1 errs by O(h^2), as all steps of order 2 do together.
    """
    x = heun(velocity, x, times[:-1], record)
    return euler(velocity, x, times[-2:], record)


def midpoint(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """The midpoint method, order 2: two evaluations a step, none at the grid's last time."""
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        x = x + h * velocity(x + h / 2 * k1, t + h / 2)
        record(x)
    return x


def rk4(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """The classical Runge-Kutta method, order 4: four evaluations a step."""
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        k2 = velocity(x + h / 2 * k1, t + h / 2)
        k3 = velocity(x + h / 2 * k2, t + h / 2)
        k4 = velocity(x + h * k3, t_next)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        record(x)
    return x


class Integrate(Protocol):
    """Signature of a solver."""

    def __call__(self, velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor: ...


@dataclass(frozen=True)
class Solver:
    """A solver, its order and its cost."""

    integrate: Integrate
    order: int
    """The global error shrinks as (step size)^order."""
    evaluations: int
    """Velocity evaluations a step."""
    fewer_at_the_end: int = 0
    """Evaluations that the last step saves."""

    def num_evaluations(self, steps: int) -> int:
        """Number of velocity evaluations for a number of steps."""
        return self.evaluations * steps - self.fewer_at_the_end


SOLVERS: dict[str, Solver] = {
    "euler": Solver(euler, order=1, evaluations=1),
    "heun": Solver(heun, order=2, evaluations=2),
    "midpoint": Solver(midpoint, order=2, evaluations=2),
    "rk4": Solver(rk4, order=4, evaluations=4),
}
