"""Objects of commands under `--json` have the type that `ditlab schema --result` prints; all tests
are held to it.
"""

from pathlib import Path
from types import UnionType
from typing import get_args, get_type_hints

import click
import pytest
from pydantic import ValidationError

from ditlab.cli.output_types import result_types
from ditlab.parts import importers
from support.click_commands import every_command
from support.results import strict_type


def test_every_command_takes_json_and_has_a_type():
    found = {
        words: command
        for words, command in every_command()
        if not isinstance(command, click.Group) or command.invoke_without_command
    }
    assert [
        name
        for name, command in found.items()
        if "as_json" not in {each.name for each in command.params}
    ] == []
    kinds = {f"data import {kind}" for kind in importers()}
    assert kinds < set(found) and set(found) - kinds | {"data import"} == set(result_types())


def test_a_schema_says_what_a_program_reads(ditlab):
    schema = ditlab("schema", "--result", "train", "--json").json
    trained = schema["$defs"]["TrainedOutput"]
    assert {"run_id", "status", "reason", "metrics"} <= set(
        trained["required"]
    ) and "quick" not in trained["required"]
    assert "budget" in trained["properties"]["reason"]["description"]
    assert {"$ref": "#/$defs/ErrorOutput"} in schema["anyOf"]
    refused = ditlab("schema", "--result", "trian", "--json").refused()
    assert "did you mean 'train'?" in refused.json["message"]


def test_a_key_too_many_or_too_few_is_seen():
    whole = {"run_id": "1", "name": "new", "before": "old"}
    strict_type("runs rename").validate_python(whole)
    for other in ({**whole, "more": 1}, {"run_id": "1", "name": "new"}, {**whole, "name": 1}):
        with pytest.raises(ValidationError):
            strict_type("runs rename").validate_python(other)


def keys(result):
    """Keys of an object as the page has them; those that are not always there with `?`."""
    if not hasattr(result, "__annotations__"):
        return "the schema"
    always = result.__required_keys__  # type: ignore[attr-defined]
    return ", ".join(key if key in always else f"{key}?" for key in get_type_hints(result))


def test_the_page_for_programs_has_every_command_and_key():
    text = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
    for name, result in result_types().items():
        shapes = get_args(result) if isinstance(result, UnionType) else [result]
        row = f"| `{name}` | {'; or '.join(map(keys, shapes))} |"
        assert row in text.splitlines(), row


OF_A_RUN = [
    "runs",
    "runs show RUN",
    "runs log RUN",
    "runs query VALUES(1)",
    "runs rm RUN --dry-run",
    "verify RUN --steps 0",
    "report RUN --out OUT/page.html",
    "export RUN --out OUT/export",
    "weights inspect OUT/export",
    "sample RUN --num 2 --out OUT/samples",
    "evaluate RUN --rows 8",
    "figures RUN --list",
    "train SPEC --local --dry-run",
    "tune SWEEP --dry-run",
    "params SPEC --shapes",
    "validate SPEC",
    "show SPEC",
    "show SWEEP",
    "new",
    "data list",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that all commands write into: an export of one is read by the next."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("words", OF_A_RUN)
def test_results_of_a_run(with_run, finished, folder, words):
    sweep = folder / "swept.yaml"
    sweep.write_text(
        f"name: swept\nbase: {finished.spec}\nspace: {{optimizer.lr: {{kind: grid, values: "
        "[1.0e-3, 1.0e-4]}}\nmetric: eval/velocity\nsearch: {kind: grid}\n"
    )
    places = {
        "RUN": finished.run_id,
        "SPEC": str(finished.spec),
        "SWEEP": str(sweep),
        "OUT": str(folder),
    }
    given = [places.get(word) or word.replace("OUT", places["OUT"]) for word in words.split()]
    said = with_run(*given, "--json").ok()
    assert said.out.count("\n") == 1 and said.json, "all else is on standard error"
    assert "next: " not in said.err
