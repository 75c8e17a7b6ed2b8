"""Some steps of a run, chosen at random and done again."""

import time
from collections.abc import Iterator

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.replay.check import check_replay
from ditlab.checking.replay.course.course import Course
from ditlab.checking.replay.opening import ReplaySource, open_source
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.errors import RunFailed, UserError

NEAR = 64
"""Steps behind a checkpoint that count as near to it: no replay trains more, unless there are none."""


def check_random_steps(
    run: OpenedRun, num: int, seed: int, seconds: float, anyway: bool, now: float
) -> Iterator[VerifiedPart]:
    """Do up to `num` steps again, in at most about `seconds` from `now` on, and compare them with the run's record.

    None where code or device are other than the run's, unless `anyway`: a difference would not be the run's fault.
    """
    try:
        source = open_source(run, anyway)
    except UserError as error:
        yield VerifiedPart("replay", "not checked", str(error))
        return
    chosen = choose_steps(source, num, seed)
    if not chosen:
        yield VerifiedPart("replay", "not checked", "no step that was done has a state to begin from.")
        return
    done: list[int] = []
    bounds: set[str] = set()
    for step in chosen:
        if done and (time.monotonic() - now) * (len(done) + 1) / len(done) > seconds:
            break
        try:
            found = check_replay(source, step, step)
        except (UserError, RunFailed) as error:
            yield VerifiedPart("replay", "not checked", f"step {step:,}: {error}")
            continue
        for off in (each for each in found.comparisons if not each.holds):
            yield VerifiedPart(
                "replay", "off",
                f"step {step:,}: {off.quantity} is {off.recorded} in the {off.source}, and {off.replayed} when it is "
                "done again.",
            )  # fmt: skip
        if found.comparisons and found.holds:
            done.append(step)
            bounds.add("to the bit" if found.tolerance.relative == 0 else f"within {found.tolerance.relative:.1g}")
        elif not found.comparisons:
            yield VerifiedPart("replay", "not checked", " ".join(found.unchecked))
    if done:
        steps = ", ".join(f"{step:,}" for step in sorted(done))
        left = [step for step in chosen if step not in done]
        rest = f" {len(left)} more were chosen and not done (--time {seconds:.0f})." if left else ""
        yield VerifiedPart(
            "replay", "holds",
            f"steps {steps} of {source.course.last - source.course.first:,}, chosen at random (--seed {seed}), gave "
            f"the recorded numbers again, {' and '.join(sorted(bounds))}.{rest}",
        )  # fmt: skip
    for remark in source.remarks:
        yield VerifiedPart("code", "not checked", remark)


def choose_steps(source: ReplaySource, num: int, seed: int) -> list[int]:
    """Choose steps at random, among those near to a state from which a replay can begin, where there are any."""
    course, generator = source.course, np.random.default_rng(seed)
    candidates = _near_steps(course, [course.first, *source.whole])
    if not candidates:
        return []
    return generator.permutation(np.array(sorted(candidates)))[:num].tolist()


def _near_steps(course: Course, states: list[int]) -> set[int]:
    near = {step for state in states for step in range(state + 1, min(state + NEAR, course.last) + 1)}
    return {step for step in near if not course.final(step).left_out}
