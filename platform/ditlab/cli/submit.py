"""`ditlab submit`."""

import json
import os
from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import emit, json_option, print_line, say, set_option, spec_argument
from ditlab.cli.hints import hint_text
from ditlab.cli.starting import start_option, weights_only_option


@click.command()
@spec_argument
@set_option
@click.option(
    "--address",
    metavar="URL",
    help="Address of the job server (default: RAY_API_SERVER_ADDRESS, else that of the tunnel).",
)
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    help="Folder that is sent to the cluster.",
)
@click.option(
    "--resume", metavar="RUN|auto", help="Continue a run or sweep; `auto`: the newest unfinished of this spec."
)
@start_option
@weights_only_option
@click.option("--no-wait", is_flag=True, help="Return once the job is submitted.")
@json_option
def submit(
    spec: Path,
    overrides: tuple[str, ...],
    address: str | None,
    working_dir: Path,
    resume: str | None,
    start_from: str | None,
    weights_only: bool,
    no_wait: bool,
    as_json: bool,
) -> int:
    """Run an experiment or a sweep as a job of a Ray cluster, and follow its log.

    The working directory is sent along, without the files that .gitignore and .rayignore name. Ctrl-C leaves the job
    running; `ray job stop` ends it after a final checkpoint.
    """
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.cluster.jobs import DEFAULT_ADDRESS, JobServer, package_files
    from ditlab.spec.composition.start import parse_start

    if start_from:
        parse_start(start_from)  # the run itself is known to the cluster's home alone
    forked = [*(["--from", start_from] if start_from else []), *(["--weights-only"] if weights_only else [])]
    root, name, command = _command(spec, overrides, working_dir, resume, forked, as_json)
    package_files(root).check()
    with JobServer(address or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT_ADDRESS) as jobs:
        with ProgressBars(f"sending {root} to {jobs.address}"):
            job = jobs.submit(name, command, root)
        say(f"job {job} at {jobs.address} · stop it: ray job stop {job} --address {jobs.address}")
        if no_wait:
            emit({"job": job, "status": "SUBMITTED"}, as_json)
            hint_text(as_json, f"ray job logs --follow {job} --address {jobs.address}")
            return 0
        output = _JobOutput(as_json)
        try:
            ended = jobs.follow(job, output.add)
        except KeyboardInterrupt:
            say(f"\nno longer following job {job}, which goes on · its log: ray job logs --follow {job}")
            raise
        if ended.exit_code and ended.status == "FAILED" and not output.has_text:
            say(f"job {job} failed before it could start: {ended.message}")
        say(f"job {job} {ended.status.lower()}")
    emit({"job": job, "job_status": ended.status, **output.result()}, as_json)
    return ended.exit_code


def _command(
    spec: Path,
    overrides: tuple[str, ...],
    working_dir: Path,
    resume: str | None,
    forked: list[str],
    as_json: bool,
) -> tuple[Path, str, list[str]]:
    """Working directory, run name and command of the job.

    Raises UserError for a spec that is wrong or lies elsewhere: better here than after the upload.
    """
    from ditlab.errors import UserError
    from ditlab.home import followed
    from ditlab.spec.loading import load_experiment
    from ditlab.spec.reading.files import is_sweep, spec_files
    from ditlab.spec.sweep.loading import load_sweep

    root = followed(working_dir)
    if not root.is_dir():
        raise UserError(f"--working-dir {working_dir} is no folder; name the one that holds {spec}.")
    sweep = is_sweep(spec)
    loaded: Any = load_sweep(spec, overrides) if sweep else load_experiment(spec, overrides)
    for file in spec_files(spec):
        if not file.is_relative_to(root):
            raise UserError(
                f"{file} does not lie below --working-dir {root}, the only folder that is sent along; name a folder "
                "that holds it."
            )
    command = ["python", "-m", "ditlab", "tune" if sweep else "train", str(followed(spec).relative_to(root))]
    for override in overrides:
        command += ["--set", override]
    command += [*(["--resume", resume] if resume else []), *forked]
    return root, loaded.name, [*command, *(["--json"] if as_json else [])]


class _JobOutput:
    """Output of the job: lines are printed, the last JSON line is kept for the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json, self._rest, self._last = as_json, "", ""
        self.has_text = False

    def add(self, text: str) -> None:
        """Print the lines that are complete."""
        self.has_text = self.has_text or bool(text.strip())
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self._as_json and line.startswith("{"):
                self._last = line
            else:
                print_line(line, self._as_json)

    def result(self) -> dict[str, Any]:
        """The command's JSON result, empty without one."""
        if self._rest:
            self.add("\n")
        try:
            found = json.loads(self._last) if self._last else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
