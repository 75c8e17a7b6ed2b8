"""`ditlab ask`: requests to a run in training."""

from __future__ import annotations

from dataclasses import asdict

import click

from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.receipts.records import VERBS


@click.command()
@options.run
@click.argument("verb", metavar="|".join(VERBS), type=click.Choice(VERBS))
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Longest wait for the answer.")
@click.option("--no-wait", is_flag=True, help="Return once the request is written.")
@click.option("--address", metavar="HOST:PORT", help="Ray cluster of a run whose DITLAB_HOME is not here.")
@options.as_json
def ask(run: str, verb: str, wait: float | None, no_wait: bool, address: str | None, as_json: bool) -> int:
    """Ask RUN, which trains now, for a grid of samples, an evaluation, a checkpoint, or its end after both.

    It is done at the end of a step, by all workers, and changes nothing of what is trained: weights are those of a run
    that was never asked, to the bit. `stop-after-evaluation` evaluates, saves and ends the run as Ctrl-C does:
    interrupted, and --resume goes on.

    Without --wait the command waits until the run has answered or has ended. Ctrl-C ends the wait alone: the request
    stays. What is not done, or has no answer in time, is exit code 2.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab_addons.ask.asking import answer_lines

    limit = 0.0 if no_wait else wait
    if address and address.startswith(("http://", "https://")):
        raise UserError(
            f"--address={address} is that of a job server, which asks no run; write Ray's own HOST:PORT (6379 by "
            f"default), or run `ditlab ask {run} {verb}` on the machine that holds the run's DITLAB_HOME."
        )
    if address:
        from ditlab.cluster.session import ray_session

        with ProgressBars(f"connecting to {address}") as progress, ray_session(address, 0, progress.warn):
            from ditlab.cluster.asking import ask_on_cluster

            run_id, answer = ask_on_cluster(run, verb, limit, progress.stage)
    else:
        from ditlab.tracking.records import find_training_run
        from ditlab_addons.ask.asking import ask as ask_folder

        try:
            found = find_training_run(Home.from_environment(), run)
        except UserError as error:
            raise UserError(f"{error} One that trains under another DITLAB_HOME takes --address HOST:PORT.") from None
        if found.note:
            output.say(found.note)
        with ProgressBars(f"asking run {found.folder.run_id}") as progress:
            run_id, answer = found.folder.run_id, ask_folder(found.folder, verb, limit, progress.stage)
    for line in answer_lines(answer):
        output.print_line(line, as_json)
    output.emit({"run_id": run_id, **asdict(answer)}, as_json)
    if not address:
        output.hint(as_json, "runs show" if verb == "stop-after-evaluation" else "watch", run_id)
    return 0 if answer.status == "done" or (no_wait and answer.status == "open") else 2
