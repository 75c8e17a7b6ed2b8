"""`ditlab doctor`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.reports.formatting import terminal_table

if TYPE_CHECKING:
    from ditlab_addons.doctor.machine import Finding


# Annotations of this file are evaluated: TypedDict takes text for keys that are always there.
class DoctorOutput(TypedDict):
    """`ditlab doctor`; exit code 1 where something is missing."""

    missing: list[str]
    findings: list[dict[str, str]]
    verdict: NotRequired[str]
    """With `--cluster`."""


RESULTS = {"doctor": DoctorOutput}


@click.command()
@click.option(
    "--cluster", is_flag=True, help="Check a cluster instead: nodes, access, storage, network."
)
@click.option("--address", help="Ray cluster to check (default: RAY_ADDRESS).")
@click.option(
    "--storage", metavar="PATH|URI", help="With --cluster: place of checkpoints, to be measured."
)
@options.as_json
def doctor(cluster: bool, address: str | None, storage: str | None, as_json: bool) -> int:
    """Check this machine, or a cluster, for what training needs. Exit code 1 where training cannot
    work.
    """
    from rich.text import Text

    from ditlab.cli.progress import ProgressBars
    from ditlab_addons.doctor.machine import check_machine, last_sentence

    if cluster:
        findings = _check_cluster(address, storage)
    else:
        for option, value in (("--address", address), ("--storage", storage)):
            if value is not None:
                raise UserError(
                    f"{option} {value} is of a cluster; add --cluster, or leave {option} out."
                )
        with ProgressBars("checking this machine"):
            findings = check_machine()
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    rows = (
        (Text(each.verdict, colours[each.verdict]), each.what, each.found, each.remedy)
        for each in findings
    )
    columns = {"": "id", "what": "text", "found": "text", "remedy": "text"}
    output.console(as_json).print(terminal_table(columns, rows))
    missing = list(
        dict.fromkeys(finding.what for finding in findings if finding.verdict == "missing")
    )
    result = {"missing": missing, "findings": [asdict(finding) for finding in findings]}
    if cluster:
        output.print_line(last_sentence(findings), as_json)
        result["verdict"] = last_sentence(findings)
    output.emit(result, as_json)
    example = Path("experiments/digits/dit.yaml")
    if missing:
        again = output.command_line("doctor", *output.repeated_arguments("as_json"))
        output.hint_text(
            as_json, f"install or set what is missing ({', '.join(missing)}), then {again}"
        )
    else:
        there = ["--address", address] if cluster and address else []
        output.hint(as_json, "train", *([example, *there] if example.is_file() else ["--help"]))
    return 1 if missing else 0


def _check_cluster(address: str | None, storage: str | None) -> "list[Finding]":
    from ditlab.cli.progress import ProgressBars
    from ditlab.cluster.session import cluster_address, ray_session
    from ditlab.spec.uris import refuse_storage

    try:
        if storage is not None:
            refuse_storage("--storage", storage)
    except ValueError as error:
        raise UserError(str(error)) from None
    where = cluster_address(address)
    if where is None:
        raise UserError(
            "--cluster needs a cluster; name one with --address HOST:PORT, or run this as a "
            "Ray job."
        )
    with ProgressBars(f"connecting to the cluster at {where}") as progress, ray_session(where, 0):
        from ditlab_addons.doctor.cluster import check_cluster

        progress.stage("checking the cluster")
        return check_cluster(storage, progress.say)
