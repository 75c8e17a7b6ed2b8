"""`ditlab data upload`: a store to a place that every node can read."""

import click

from ditlab.cli.common import emit, json_option, say
from ditlab.cli.hints import hint_text


@click.command()
@click.argument("store")
@click.argument("uri")
@json_option
def upload(store: str, uri: str, as_json: bool) -> None:
    """Upload a store to a URI, for data: {kind: arrow, path: URI}.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. URI: the store's folder there, such as
    s3://bucket/stores/NAME, in the form that checkpoint.storage takes. Another store is never overwritten.
    """
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.data.named_stores import open_named_store
    from ditlab.data.remote.uploading import upload_store
    from ditlab.home import Home

    opened = open_named_store("STORE", store, Home.from_environment())
    with ProgressBars(f"uploading {opened.name}"):
        opened.verify()
        done = upload_store(opened, uri)
    what = f"{opened.name}: {len(opened):,} rows, {done.size / 2**20:,.1f} MiB (fingerprint {opened.fingerprint[:12]})"
    say(f"{what} {'is there already, unchanged' if done.outcome == 'unchanged' else 'uploaded'}: {uri}")
    facts = {"name": opened.name, "rows": len(opened), "fingerprint": opened.fingerprint}
    emit({**facts, "uri": uri, "outcome": done.outcome, "files_sent": done.sent, "bytes": done.size}, as_json)
    hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {uri}}}")
