"""Ends of training runs by signals, drawn by way, phase and moment: how each ended, and what was
left.
"""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ditlab.home import Home
from ditlab.runs.locks import running_state
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from support.command import run_inside
from support.trainings.workers import newest, same_state, tiny

STEPS, EVALUATED, EVERY = 60, 40, 7
GRACE = 25.0
PHASES = ("preparing", "training", "evaluating", "saving", "ending")
WAYS = (
    "TERM",
    "group TERM",
    "group HUP",
    "group INT",
    "group USR2",
    "tree TERM",
    "tree USR1",
    "TERM twice",
    "INT twice",
    "terminal",
    "KILL",
)
"""To the launcher, to its group as `timeout` does, to every process below it; `terminal`: it is
closed.
"""
_LATEST = {"preparing": 8.0, "training": 0.3, "evaluating": 0.4, "saving": 0.05, "ending": 1.0}
"""Seconds after a phase's first sign within which the moment lies."""


@dataclass
class Ending:
    """One end, and what was found after it."""

    way: str
    phase: str
    delay: float
    code: int = 0
    seconds: float = 0.0
    status: str = "no run"
    faults: list[str] = field(default_factory=list)
    """Sentences on what was not as promised."""

    def __str__(self):
        found = "; ".join(self.faults) or "as promised"
        end = f"exit {self.code} after {self.seconds:.1f} s, {self.status}"
        return f"{self.phase:<10} {self.way:<10} +{self.delay:.2f} s: {end}: {found}"


class Endings:
    """Draws ends of one small run in homes below a folder, and compares each resumed run with an
    unbroken one.
    """

    def __init__(self, folder, on_ray):
        self._folder = folder
        self._options = ["--grace", str(GRACE), *([] if on_ray else ["--local"])]
        self._spec, self._number = folder / "spec.yaml", 0
        changes = {
            "checkpoint": {"every": EVERY, "keep": 3},
            "evaluation": {"every": EVALUATED, "samples": 16, "limit": 128},
            "sampling": {"steps": 20},
        }
        self._spec.write_text(
            dump_yaml(tiny(name="ended", training__steps=STEPS, **changes).to_dict())
        )
        self._unbroken = None

    def draw(self, random):
        """Draw an end and do it."""
        phase, way = random.choice(PHASES), random.choice(WAYS)
        return self.end(Ending(way, phase, random.uniform(0, _LATEST[phase])))

    def end(self, ending):
        """End a run as told, look at what is left, and resume it."""
        self._number += 1
        home = self._folder / f"home-{self._number}"
        environment = {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "ditlab",
            "train",
            str(self._spec),
            *self._options,
            "--no-figures",
        ]
        log, terminal = (home.with_suffix(".log")).open("wb"), -1
        if ending.way == "terminal":
            pid, terminal = pty.fork()
            if not pid:
                os.execve(command[0], command, environment)
        else:
            pid = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            ).pid
        process = psutil.Process(pid)
        self._wait_for(ending.phase, home, process, terminal)
        time.sleep(ending.delay)
        tree = _tree(process)
        shared = {path for each in tree for path in _shared_memory(each)}
        sockets = {socket for each in tree for socket in _listening(each)}
        sockets -= {*_listening(psutil.Process())}  # which a child of `pty.fork` inherits
        asked = time.monotonic()
        self._send(ending.way, process, tree, terminal)
        with suppress(psutil.TimeoutExpired):
            ending.code = _code(process, GRACE + 10)
        ending.seconds = time.monotonic() - asked
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            ending.faults.append("it goes on")
            process.kill()
        elif ending.seconds > GRACE + 1:
            ending.faults.append("later than the grace")
        self._look(ending, home, shared, sockets, log.name)
        if not ending.faults:
            self._resume(ending, home)
        return ending

    def _wait_for(self, phase, home, process, terminal):
        signs = {
            "preparing": lambda _: handles_sigterm(process.pid),
            "training": lambda journal: '"step":12,' in journal,
            "evaluating": lambda journal: f'"step":{EVALUATED - 1},' in journal,
            "saving": lambda _: any(
                not (each / "manifest.json").exists() for each in home.glob("*/*/checkpoints/s*")
            ),
            "ending": lambda journal: f'"step":{STEPS - 1},' in journal,
        }
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.status() != psutil.STATUS_ZOMBIE:
            if terminal >= 0:
                os.set_blocking(terminal, False)
                with suppress(OSError):
                    os.read(terminal, 1 << 16)
            journals = [each.read_text() for each in home.glob("train/*/journal.jsonl")]
            if signs[phase](journals[0] if journals else ""):
                return
            time.sleep(0.005)

    def _send(self, way, process, tree, terminal):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if way == "terminal":
                os.close(terminal)
            elif way.startswith("tree"):
                for each in reversed(tree):
                    with suppress(psutil.NoSuchProcess):
                        each.send_signal(getattr(signal, f"SIG{way.split()[1]}"))
            elif way.startswith("group"):
                for _ in range(2):  # `timeout` sends it to its child, and to the group
                    os.killpg(process.pid, getattr(signal, f"SIG{way.split()[1]}"))
            else:
                name, _, twice = way.partition(" ")
                for _ in range(2 if twice else 1):
                    process.send_signal(getattr(signal, f"SIG{name}"))
                    time.sleep(0.7 if twice else 0)

    def _look(self, ending, home, shared, sockets, log):
        """Find what is left after an end, and what `runs` says within 5 s; on Ray killed -9, its
        agents have 15 s.
        """
        said, ended = Path(log).read_text(errors="replace"), time.monotonic()
        while (state := _state(home)) == "running" and time.monotonic() < ended + 5:
            time.sleep(0.1)
        ending.status = state
        deadline = ended + (15 if ending.way == "KILL" else 5)
        while (
            left := [*_of_home(home), *_still_listening(sockets)]
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        ending.faults += [f"left: {each}" for each in left]
        ending.faults += [f"left in memory: {path}" for path in shared if Path(path).exists()]
        if "Traceback" in said or "Check failed" in said or "terminate called" in said:
            ending.faults.append(f"said: {said[-1500:]}")
        allowed = {"interrupted": {130}, "finished": {0, 130}, "no run": {130}, "lost": {130}}
        if ending.way == "KILL":
            allowed = {"lost": {-9}, "finished": {-9, 0}, "no run": {-9}}
        if ending.code not in allowed.get(ending.status, set()):
            ending.faults.append(
                f"exit code {ending.code} with status {ending.status}: {said[-500:]}"
            )

    def _resume(self, ending, home):
        """Go on with the run, and compare its last checkpoint with that of the unbroken one."""
        if self._unbroken is None:
            self._unbroken = self._finished(self._folder / "unbroken")
        with suppress(AssertionError):
            if same_state(self._finished(home), self._unbroken):
                return
        ending.faults.append("resumed, it has other bits")

    def _finished(self, home):
        words = ["train", self._spec, *self._options, "--no-figures", "--json"]
        runs = list_runs(Home(home)) if (home / "train").exists() else []
        if not (runs and runs[0].status == "finished"):
            said = run_inside(*words, *(["--resume", runs[0].run_id] if runs else []), home=home)
            assert said.code == 0, said.err
        [run] = list_runs(Home(home))
        return newest(Home(home).run(run.run_id).checkpoints)


def _tree(process):
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def _code(process, seconds):
    """Exit code of a child, negative for a signal's number."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    raise psutil.TimeoutExpired(seconds)


def handles_sigterm(pid):
    with suppress(OSError):
        _, _, rest = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")
        return bool(int(rest.split()[0], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _state(home):
    """Status of a home's one run, as `runs` tells it."""
    runs = list_runs(Home(home)) if (home / "train").exists() else []
    if runs and runs[0].status == "running":
        return running_state(Home(home).run(runs[0].run_id), runs[0]).state
    return runs[0].status if runs else "no run"


def _listening(process):
    with suppress(psutil.Error):
        yield from (
            each.laddr for each in process.net_connections() if each.status == psutil.CONN_LISTEN
        )


def _still_listening(sockets):
    """Sockets of these addresses on which a process listens now."""
    now = {
        each.laddr: each.pid
        for each in psutil.net_connections()
        if each.status == psutil.CONN_LISTEN
    }
    return [f"process {now[socket]} listens on {socket}" for socket in sockets & now.keys()]


def _shared_memory(process):
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            place = line.find("/dev/shm/")
            is_there = place > 0 and not line.endswith("(deleted)")
            if is_there and "/pytest-" not in line:  # a home of a test may lie there, too
                yield line[place:]


def _of_home(home):
    """Living processes that were started under a home."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(
                "DITLAB_HOME"
            ) == str(home):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
    return found
