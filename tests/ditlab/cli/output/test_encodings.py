"""Streams whose encoding lacks characters: they are escaped, and a value is read back as it was."""

import io
import json
import sys

import pytest

from ditlab.cli.main import main
from ditlab.cli.output import print_yaml
from ditlab.cli.terminal import is_encodable
from ditlab.home import Home
from ditlab.spec.files import load_experiment
from ditlab.spec.yaml_text import dump_yaml, parse_yaml
from ditlab.tracking.records import create_run, update_record

NAME = "größe 漢字"


@pytest.fixture
def said(monkeypatch):
    """`said(encoding, *arguments)` runs a command whose standard streams have that encoding."""

    def run(encoding, *arguments):
        streams = {}
        for name in ("stdout", "stderr"):
            streams[name] = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
            monkeypatch.setattr(sys, name, streams[name])
        monkeypatch.setattr(sys, "argv", ["ditlab", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        for stream in streams.values():
            stream.flush()
        written = [stream.buffer.getvalue().decode(encoding) for stream in streams.values()]
        return end.value.code or 0, *written

    return run


@pytest.fixture
def named_run(home, spec):
    """The id of a run whose name is no ASCII."""
    folder = create_run(Home.from_environment(), NAME, family="dit", spec_hash="")
    folder.spec.write_text(dump_yaml(load_experiment(spec).to_dict()))
    update_record(folder, status="failed", message=NAME)
    return folder.run_id


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "command",
    ["runs", "runs show RUN", "doctor --help", "show SPEC", "runs --json"],
)
def test_no_command_fails_on_a_character(said, named_run, spec, encoding, command):
    words = command.replace("RUN", named_run).replace("SPEC", str(spec)).split()
    code, out, err = said(encoding, *words)
    assert code == 0 and "Traceback" not in err and out
    if command == "runs":
        size = {"ascii": "gr\\xf6\\xdfe \\u6f22\\u5b57", "latin-1": "größe \\u6f22\\u5b57"}
        assert size.get(encoding, "größe 漢字") in out
    if command == "runs --json":
        assert json.loads(out)["runs"][0]["name"] == NAME


def test_an_error_is_escaped_as_well(said, home):
    code, _, err = said("ascii", "validate", "größe.yaml")
    assert code == 2 and "gr\\xf6\\xdfe.yaml" in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_yaml_keeps_its_values_in_any_encoding(encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    print_yaml({"label": NAME})
    out.flush()
    assert parse_yaml(out.buffer.getvalue().decode(encoding), "printed") == {"label": NAME}


def test_a_schema_in_a_file_of_an_odd_name(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = said("utf-8", "schema", "--out", "schema\udcff.json")
    assert code == 0 and out == "schema\\udcff.json\n"


def test_a_stream_without_an_encoding_holds_all():
    assert is_encodable("漢", io.StringIO())
