"""Work in processes: in order, a bounded way ahead, with an error where one is killed."""

import os
import signal

from ditlab.data.processes import WAITING_TASKS, in_processes
from ditlab.errors import UserError
from support.damage import refused


def doubled(number):
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if number < 0:
        raise UserError(f"number={number} is below 0.")
    return 2 * number


def test_results_come_in_order_and_tasks_are_taken_as_needed():
    taken = 0

    def tasks():
        nonlocal taken
        for taken in range(1, 101):
            yield 20 + taken

    results = in_processes(doubled, tasks(), 2, "doubles")
    assert next(results) == 42 and taken <= 2 * WAITING_TASKS
    assert list(results) == [2 * number for number in range(22, 121)]


def test_errors_of_the_work_and_killed_processes_are_raised():
    with refused("number=-1 is below 0"):
        list(in_processes(doubled, [1, -1, 2], 1, "doubles"))
    with refused(r"a process that doubles was killed .*lower --processes"):
        list(in_processes(doubled, [1, 13, 2], 1, "doubles"))
