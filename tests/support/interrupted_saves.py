"""Saves a checkpoint again and again, each time interrupted one change of files later (`interrupting.c` is preloaded).

    LD_PRELOAD=interrupting.so python interrupted_saves.py FOLDER HOW ERRNO SCENARIO

Forks a child per interruption from one warm process, and prints a JSON line for each: the folder, how the child ended.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.checkpoints import manifest, save, saver, shard_of, state

SHIM = ctypes.CDLL(os.environ["LD_PRELOAD"])
SHIM.traced.restype = ctypes.c_char_p
OFF, KILL, TORN, ERROR, COUNT = range(5)


def scene(place: Path, scenario: str) -> None:
    """What lies there before: step 1 whole, and for two scenarios an attempt at step 2."""
    assert save(place, 1).error is None
    if scenario != "new":
        assert save(place, 2).error is None
    if scenario == "damaged":
        shard = shard_of(place, 2)
        shard.write_bytes(shard.read_bytes()[:-1])


def child(place: Path, how: int, nth: int, number: int) -> int:
    """Exit code 0: saved; 3: a failure that was told, and a save that worked afterwards; anything else is wrong."""
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


def main(root: Path, how: int, number: int, scenario: str) -> None:
    torch.set_num_threads(1)
    template = root / "template"
    scene(template, scenario)
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
        if code == 10:  # the save was over before its nth change
            return
        ended = {0: "saved", 3: "told", -signal.SIGKILL: "killed"}.get(code, f"wrong: {code}")
        print(json.dumps({"nth": nth, "place": str(place), "ended": ended}), flush=True)
    raise AssertionError("a save of a hundred changes of files")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
