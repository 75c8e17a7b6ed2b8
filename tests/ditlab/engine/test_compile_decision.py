"""The decision of `engine.compile: auto` is a function of spec, device type and torch's version
alone.
"""

import os
from types import SimpleNamespace

import torch

from ditlab.engine.compilation import compile_blocks
from ditlab.spec.compiling import compile_decision, compiled_warning, missing_to_compile
from support.damage import refused
from support.trainings.workers import tiny


def test_truth_table(monkeypatch):
    for wanted, stage, device, torch_version, compiled in [
        (False, 1, "cuda", "2.13.0", False),
        (True, 1, "cpu", "2.8.0", True),
        (True, 3, "cuda", "2.13.0", True),
        ("auto", 0, "cpu", "2.13.0+cpu", True),
        ("auto", 1, "cuda", "2.13.1+cu128", True),
        ("auto", 1, "cpu", "2.12.9", False),
        ("auto", 1, "cpu", "3.0.0", True),
    ]:
        experiment = tiny(engine__compile=wanted, engine__zero__stage=stage)
        monkeypatch.setattr(
            "ditlab.spec.compiling.installed_torch", lambda version=torch_version: version
        )
        decision = compile_decision(experiment, device)
        assert decision.is_compiled is compiled, (wanted, stage, device, torch_version)
        assert f"engine.compile={str(wanted).lower()}" in str(decision)
        numbers = f"compiled by torch {torch_version.split('+')[0]} for {device}"
        assert decision.numbers == (numbers if compiled else "eager")


def compile_none(network):
    compile_blocks(network, torch.device("cpu"), whole_gathers=False)


def test_the_machine_decides_nothing(monkeypatch):
    """Not even a missing compiler: that is an error, whichever way compiled blocks were asked
    for.
    """
    experiment, blocks = tiny(engine__compile="auto"), SimpleNamespace(compiled_modules=dict)
    decision = compile_decision(experiment, "cpu")
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    assert compile_decision(experiment, "cpu") == decision
    with refused(r"^engine\.compile needs a C\+\+ compiler.*`g\+\+`; install g\+\+ .* to false"):
        compile_none(blocks)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with refused("`no-such-compiler`"):
        compile_none(blocks)


def test_headers_of_python_are_asked_for_where_they_are_missing(monkeypatch, tmp_path):
    """Debian's g++ comes without them, and torch's generated code includes Python.h."""
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    wanted = (
        rf"needs Python's headers, and {tmp_path}/Python\.h is missing; install python3-dev, or set"
    )
    with refused(wanted):
        compile_none(SimpleNamespace(compiled_modules=dict))
    (tmp_path / "Python.h").touch()
    assert missing_to_compile() is None


def test_a_network_without_blocks_is_refused():
    with refused("network Linear names none; give it a method `compiled_modules`, or set"):
        compile_none(torch.nn.Linear(1, 1))


def test_a_resumed_run_names_the_difference():
    eager, compiled = "eager", "compiled by torch 2.13.0 for cpu"
    assert compiled_warning(eager, eager) == compiled_warning(compiled, compiled) == ""
    assert f"were {eager}, and here they are {compiled}" in compiled_warning(eager, compiled)
    newer = "compiled by torch 2.14.0 for cpu"
    assert "set engine.compile as it was" in compiled_warning(compiled, newer)
