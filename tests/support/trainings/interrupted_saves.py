"""Saves of a checkpoint, each interrupted one change of files later than the one before (preload
`interrupting.c`).

    LD_PRELOAD=interrupting.so python interrupted_saves.py PLAN...

A PLAN is FOLDER:HOW:ERRNO:SCENARIO. Forks a child per interruption from one warm process, and
prints a JSON line for each: the plan's folder, the child's folder, and how the child ended.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.trainings.checkpoints import manifest, save, saver, shard_of, state

SHIM = ctypes.CDLL(os.environ["LD_PRELOAD"])
SHIM.traced.restype = ctypes.c_char_p
OFF, KILL, TORN, ERROR, COUNT = range(5)


def prepare(place, scenario):
    """Save step 1, and for the scenarios `again` and `damaged` step 2, whose shard is then cut
    short in the last.
    """
    assert save(place, 1).error is None
    if scenario != "new":
        assert save(place, 2).error is None
    if scenario == "damaged":
        shard = shard_of(place, 2)
        shard.write_bytes(shard.read_bytes()[:-1])


def child(place, how, nth, number):
    """Exit code 0: saved; 3: a failure that was reported; 10: the save ended before its `nth`
    change; else wrong.
    """
    one = saver(place, keep=1)
    SHIM.arm(str(place).encode(), how, nth, number)
    one.save(manifest(2), state(2))
    saved = one.wait()
    seen = SHIM.disarm()
    (place.parent / f"{place.name}.trace").write_bytes(SHIM.traced())
    if saved is None or seen < nth:
        return 10 if saved else 1
    if saved.error is None:
        return 0
    return 3 if saved.error.kind == "write" else 1


def interrupt_everywhere(root, how, number, scenario):
    """Interrupt a save at its first change of files, at its second, and so on until it has no
    more.
    """
    template = root / "template"
    prepare(template, scenario)
    for nth in range(1, 100):
        place = root / f"{nth:03d}"
        shutil.copytree(template, place)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(place, how, nth, number)
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 10:
            return
        ended = {0: "saved", 3: "reported", -signal.SIGKILL: "killed"}.get(code, f"wrong: {code}")
        print(json.dumps({"root": str(root), "place": str(place), "ended": ended}), flush=True)
    raise AssertionError("a save of a hundred changes of files")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for plan in sys.argv[1:]:
        folder, how, number, scenario = plan.rsplit(":", 3)
        interrupt_everywhere(Path(folder), int(how), int(number), scenario)
