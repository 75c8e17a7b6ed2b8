"""Hooks on the step loop: the moments of a training in their order, and no influence on what is
trained.
"""

from ditlab.training.hooks import Hooks, StepHook
from support.trainings.workers import newest, same_state, tiny, train_here


class Moments(StepHook):
    """A hook that keeps the moments by name, with their steps."""

    def __init__(self):
        self.seen = []

    def attempt_begun(self, stepper, memory, saved):
        self.seen.append(("attempt_begun", stepper.state.step))

    def loader_opened(self, batches, position):
        self.seen.append(("loader_opened", position))

    def step_begun(self, step, micro_batches):
        self.seen.append(("step_begun", step))

    def consumed(self, step, passes):
        self.seen.append(("consumed", step, sum(len(each.row_ids) for each in passes)))

    def step_ended(self, step):
        self.seen.append(("step_ended", step))

    def pack(self):
        return [7]

    def merge(self, step, records):
        self.seen.append(("merge", step, records))

    def measured(self, step, values):
        self.seen.append(("measured", step, "loss" in values))

    def evaluated(self, step, metrics):
        self.seen.append(("evaluated", step))
        return False

    def saving(self):
        self.seen.append(("saving",))
        return {"hook": "held"}

    def saved(self, step, location, metrics):
        self.seen.append(("saved", step))

    def attempt_ended(self):
        self.seen.append(("attempt_ended",))


def test_moments_come_in_their_order_and_change_nothing(home, tmp_path):
    experiment = tiny(
        training__steps=2,
        evaluation__every=1,
        evaluation__samples=0,
        checkpoint={"write": "blocking"},
    )
    hook = Moments()
    train_here(experiment, home, tmp_path / "with", hooks=[hook])
    train_here(experiment, home, tmp_path / "without")
    first, last = (
        [
            ("step_begun", step),
            ("consumed", step, experiment.batch.size),
            ("step_ended", step),
            ("measured", step, True),
            ("merge", step, [[7]]),
        ]
        for step in (1, 2)
    )
    begin = [("attempt_begun", 0), ("loader_opened", 0)]
    expected = [*begin, *first, ("evaluated", 1), *last, ("saving",)]
    assert [moment for moment in hook.seen if moment[0] != "saved"][: len(expected)] == expected
    assert ("saved", 2) in hook.seen and hook.seen[-1] == ("attempt_ended",)
    assert same_state(newest(tmp_path / "with"), newest(tmp_path / "without"))


class Votes:
    """A channel of three workers that all pack what this one does, but for their rank."""

    def gather_numbers(self, numbers):
        return [[number + rank for number in numbers] for rank in range(3)]


def test_every_hook_merges_its_own_numbers_and_votes_are_the_largest():
    class Packs(StepHook):
        def __init__(self, *numbers):
            self.numbers = numbers

        def pack(self):
            return self.numbers

        def merge(self, step, records):
            self.merged = step, records

    one, two = Packs(10), Packs(20, 30)
    assert Hooks([one, two]).exchange(4, Votes(), 0, 5) == [2, 7]
    assert one.merged == (4, [[10], [11], [12]])
    assert two.merged == (4, [[20, 30], [21, 31], [22, 32]])
