"""A password or key in any address of a spec is refused by every command, which does not repeat
it.
"""

import pytest

from support.command import run_here

SECRET = "pa55/w0rd+x"
EXPERIMENT = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 32, micro: 16}
training: {steps: 4}
"""
PLACES = {
    "checkpoint.storage": (
        f"s3://AKIA:{SECRET}@bucket/path",
        "checkpoint.storage=s3://... holds a password or key",
    ),
    "tracking.uri": (
        f"http://me:{SECRET}@host:5000",
        "tracking.uri=http://me:***@host:5000 holds a password",
    ),
    "name": (f"https://me:{SECRET}@host", "name=https://... holds a password or key"),
    # named with its nearest, or as a secret, whichever is said first
    "data.nowhere": (f"gs://me:{SECRET}@bucket/data", ""),
}


@pytest.fixture
def say(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(EXPERIMENT)
    yield lambda *arguments: run_here(capfd, monkeypatch, *arguments)
    assert not (tmp_path / "home").exists()


def check(said, message=""):
    assert said.code == 2 and "Traceback" not in said.err
    assert message in said.err
    for piece in ("pa55", "w0rd"):
        assert piece not in said.out + said.err


def write_sweep(
    folder, line, base="spec.yaml", axis="{optimizer.lr: {kind: choice, values: [0.1]}}"
):
    text = f"name: s\nbase: {base}\nspace: {axis}\ntrials: 1\nmetric: eval/loss\n"
    (folder / "sweep.yaml").write_text(f"{text}{line}\n")


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("command", ["validate", "show", "train", "params"])
def test_set_on_the_command_line(say, command, where):
    value, message = PLACES[where]
    check(say(command, "spec.yaml", "--set", f"{where}={value}"), message)


@pytest.mark.parametrize("command", ["validate", "show", "train"])
def test_in_the_file(say, tmp_path, command):
    text = f"{EXPERIMENT}checkpoint: {{storage: 's3://AKIA:{SECRET}@bucket/path'}}\n"
    (tmp_path / "spec.yaml").write_text(text)
    check(
        say(command, "spec.yaml", "--json"), "checkpoint.storage=s3://... holds a password or key"
    )
    (tmp_path / "child.yaml").write_text("extends: spec.yaml\nname: child\n")
    check(say(command, "child.yaml"), "checkpoint.storage=s3://... holds a password or key")


@pytest.mark.parametrize(
    "line",
    [
        f"fixed: {{checkpoint.storage: 's3://AKIA:{SECRET}@bucket/path'}}",
        f"fixed: {{tracking.uri: 'http://me:{SECRET}@host:5000'}}",
        f"fixed: {{tracking: {{uri: 'http://me:{SECRET}@host:5000'}}}}",
    ],
)
def test_in_a_sweep(say, tmp_path, line):
    write_sweep(tmp_path, line)
    for command in ("validate", "show", "tune"):
        check(say(command, "sweep.yaml"), "holds a password")


HOOK = f"https://hooks.example/{SECRET}"


@pytest.mark.parametrize(
    "notify",
    [
        f"[{{on: [best], to: '{HOOK}'}}]",
        f"[{{on: [best], url: '{HOOK}'}}]",
        f"['{HOOK}']",
        HOOK,
        f"[{{on: ['{HOOK}'], to: env:HOOK}}]",
        f"[{{on: [best], to: 'xoxb {SECRET}'}}]",
        f"[{{on: [best], to: {{a: '{HOOK}'}}}}]",
    ],
)
def test_an_address_of_notify_stands_in_the_environment_alone(say, tmp_path, notify):
    sentence = (
        "notify.to=... is no env:NAME; write the address into an environment variable and name that"
    )
    (tmp_path / "notify.yaml").write_text(f"extends: spec.yaml\nnotify: {notify}\n")
    for arguments in (
        ["validate", "notify.yaml"],
        ["train", "spec.yaml", "--set", f"notify={notify}"],
    ):
        check(say(*arguments), sentence)
    check(
        say("show", "spec.yaml", "--set", f"notify.to={HOOK}"),
        "--set notify.to=...: notify is a plain value",
    )
    check(
        say("show", "spec.yaml", "--set", f"notfy={HOOK}"),
        "--set notfy=...: notfy is no known field; did you mean",
    )
    (tmp_path / "keyed.yaml").write_text(
        f"extends: spec.yaml\nnotify: [{{on: [best], {HOOK}: 3}}]\n"
    )
    check(say("show", "keyed.yaml"), "notify.0....=3 is no known field")
    write_sweep(tmp_path, "", base="notify.yaml")
    check(say("tune", "sweep.yaml"), sentence)


def test_as_a_value_of_an_axis(say, tmp_path):
    axis = f"{{data.path: {{kind: choice, values: ['a', 's3://AKIA:{SECRET}@bucket/path']}}}}"
    write_sweep(tmp_path, "", axis=axis)
    check(say("validate", "sweep.yaml"), "space.data.path.values=s3://... holds a password or key")


def test_ordinary_addresses_pass(say, tmp_path):
    for value in (
        "s3://bucket/path?region=eu&scheme=http&endpoint_override=127.0.0.1:9000",
        "gs://bucket",
        "kept@here",
    ):
        assert say("show", "spec.yaml", "--set", f"checkpoint.storage={value}").code == 0
    assert say("show", "spec.yaml", "--set", "tracking.uri=http://ann@host:5000").code == 0
