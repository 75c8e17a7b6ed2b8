"""`ditlab doctor`."""

from dataclasses import asdict

import click

from ditlab.cli.common import emit, json_option


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Say what is missing on this machine. Exit code 1 where training cannot work."""
    from rich.console import Console
    from rich.table import Table

    from ditlab.cluster.checks import check_machine

    findings = check_machine()
    table = Table("", "what", "found", "remedy")
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}
    for finding in findings:
        table.add_row(marks[finding.verdict], finding.what, finding.found, finding.remedy)
    Console(stderr=as_json).print(table)
    missing = [finding.what for finding in findings if finding.verdict == "missing"]
    emit({"missing": missing, "findings": [asdict(finding) for finding in findings]}, as_json)
    return 1 if missing else 0
