"""Searches a learning rate by commands and their JSON alone, until the budget (DITLAB_BUDGET)
refuses the next run.

DITLAB_BUDGET=30min python search_program.py SPEC.yaml
"""

import json
import random
import subprocess
import sys


def ditlab(*words):
    """Exit code of a command, and the object on its last line."""
    command = [sys.executable, "-m", "ditlab", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def finished_runs():
    """Runs that have ended as planned, the best first."""
    where = "status = 'finished' AND main_value NOT NULL"
    return ditlab(
        "runs", "query", f"SELECT run, main_value FROM runs WHERE {where} ORDER BY main_value"
    )[1]["rows"]


spec = sys.argv[1]
dice = random.Random(0)
tried = {}  # rates by run
code, checked = ditlab("validate", spec)
if code:
    sys.exit(checked["message"])
while True:
    best = finished_runs()[:1]
    centre = tried.get(best[0]["run"], 1e-3) if best else 1e-3
    rate = centre * 10 ** dice.uniform(-1, 1)
    code, ended = ditlab(
        "train", spec, "--local", "--no-figures", "--set", f"optimizer.lr={rate:g}"
    )
    if code == 2 and ended["kind"] == "budget":
        break
    if code not in (0, 130):  # 130: the budget has ended this run, and refuses the next one
        sys.exit(ended["message"])
    tried[ended["run_id"]] = rate
print(json.dumps({"best": best[0]["run"] if best else None, "runs": len(tried), "refused": ended}))
