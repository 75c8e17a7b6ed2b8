"""Signals to a command: what is one request, what is a second one, and that it ends in time
whatever it does.
"""

import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ditlab.runs.signals import SIGNALS, WARNINGS, stop_signals
from ditlab.tracking.records import is_process_there, this_process
from support.python_process import run_python

SCRIPT = """
import subprocess, sys, time
from ditlab.runs.signals import command_signals, stop_signals
def wait(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
try:
    with command_signals():
        {body}
except KeyboardInterrupt:
    sys.exit("interrupted")
"""
TRAINING = """with stop_signals(grace={grace}) as stop:
            print("ready", flush=True)
            while not stop.count: wait(0.02)
            print("saving", flush=True)
            {saving}"""
STUCK = (
    "subprocess.Popen(['sleep', '300'])\n            while True:\n                try: wait(1)\n"
)
STUCK += "                except KeyboardInterrupt: pass"


def begin(body, before=None):
    """A command that is about to do `body`; `before` runs in its process before the command."""
    command = [sys.executable, "-c", SCRIPT.replace("{body}", body)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
        start_new_session=True,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def training(grace=20, saving="wait(1)"):
    return TRAINING.replace("{grace}", str(grace)).replace("{saving}", saving)


def test_a_signal_twice_at_once_is_one_request_as_timeout_sends_it():
    process = begin(training() + "\n        print('saved', flush=True)")
    os.kill(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "saving\nsaved\n", "")


def test_a_module_that_is_interrupted_within_exec_has_its_own_exit_code(tmp_path):
    """As `python -m ditlab` within the making of a dataclass, in one start of twelve by TERM within
    4 s.
    """
    (tmp_path / "stopped.py").write_text(
        "import sys\nfrom ditlab.runs.signals import command_signals\ntry:\n    with "
        "command_signals():\n        exec('import os, signal, time; os.kill(os.getpid(), "
        "signal.SIGTERM); time.sleep(9)')\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    run_python("-m", "stopped", code=130, cwd=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_ends_it_while_it_saves(number):
    process = begin(training(saving="wait(15)"))
    process.send_signal(number)
    assert process.stdout and process.stdout.readline() == "saving\n"
    time.sleep(0.7)
    process.send_signal(number)
    _, err = process.communicate(timeout=5)
    assert process.returncode == 1 and err == "interrupted\n"


@pytest.mark.slow
def test_what_does_not_end_is_ended_with_its_processes_within_the_grace():
    process = begin(training(grace=2, saving=STUCK))
    process.terminate()
    assert process.stdout and process.stdout.readline() == "saving\n"
    children, begun = psutil.Process(process.pid).children(), time.monotonic()
    assert process.wait(10) == 130 and time.monotonic() - begun < 5
    _, left = psutil.wait_procs(children, 5)
    assert not left and process.stderr and process.stderr.read() == "ditlab: interrupted.\n"


def test_the_grace_bounds_what_libraries_do_at_the_exit():
    process = begin(training(grace=1, saving="import atexit; atexit.register(time.sleep, 60)"))
    process.terminate()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "interrupted" in err


@pytest.mark.slow
def test_under_nohup_a_closed_terminal_changes_nothing():
    process = begin(training(), before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert process.poll() is None
    process.terminate()
    assert process.communicate(timeout=20)[0] == "saving\n" and process.returncode == 0


@pytest.mark.parametrize("number", WARNINGS)
def test_a_batch_systems_warning_asks_for_a_last_checkpoint(number):
    process = begin(training(saving="wait(0.2)") + "\n        print('saved', flush=True)")
    process.send_signal(number)
    assert process.communicate(timeout=20) == ("saving\nsaved\n", "") and process.returncode == 0


@pytest.mark.slow
def test_a_limit_of_cpu_time_that_the_kernel_repeats_is_one_request():
    spin = "end = time.process_time() + 2\n            while time.process_time() < end: pass"
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    saving = f"print(stop.count)\n            {spin}\n            print(stop.count)"
    process = begin(
        training(saving=saving).replace("wait(0.02)", "pass"),
        before=lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, hard)),
    )
    assert process.communicate(timeout=60) == ("saving\n1\n1\n", "") and process.returncode == 0


def test_a_warning_that_a_script_handles_itself_stays_the_scripts():
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert got == [signal.SIGUSR1] and stop.count == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handlers_are_put_back_for_a_notebook():
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.count == 1
    assert before == [signal.getsignal(number) for number in SIGNALS]


def test_a_handler_that_c_code_took_the_place_of_is_put_back():
    """As Ray's C++ part does, at its start and at its end: Python goes on to name its own
    handler.
    """
    code = (
        "import ctypes, os, signal\nfrom ditlab.runs.signals import command_signals, "
        "renew_handlers\nwith command_signals():\n    ctypes.CDLL(None).signal(signal.SIGTERM, "
        "None)\n    renew_handlers()\n    try: os.kill(os.getpid(), signal.SIGTERM)\n    "
        "except KeyboardInterrupt: os._exit(7)\n"
    )
    run_python("-c", code, code=7)


def test_what_would_end_an_interrupted_training_does_not_end_a_later_command():
    code = (
        "import os, signal, time\nfrom ditlab.runs.signals import command_signals, stop_signals\n"
        "with stop_signals(grace=0.3): os.kill(os.getpid(), signal.SIGTERM)\n"
        "with command_signals(): time.sleep(0.6)\n"
    )
    run_python("-c", code)


def test_a_process_is_told_from_another_of_its_number():
    here = this_process()
    assert is_process_there(here)
    assert is_process_there({**here, "host": "node-7"}) is None  # not to be seen from here
    done = subprocess.Popen(["true"])
    done.wait()
    for change in (
        {"begun": "1000"},  # the number was given again
        {"boot": "another"},  # the host was started again
        {"pid": str(done.pid)},
        {"pid": "none"},
    ):
        assert is_process_there(here | change) is False
