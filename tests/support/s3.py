"""An S3 server on loopback, for as long as a test session lasts."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """moto's server in a thread of this process; gives the query that sends an s3:// URI there.

    Credentials stand in the environment meanwhile, as they would on a cluster.
    """
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    settings = {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint = f"127.0.0.1:{server.server_port}"
        boto3.client("s3", endpoint_url=f"http://{endpoint}").create_bucket(Bucket=bucket)
        yield f"scheme=http&region=us-east-1&endpoint_override={endpoint}"
    finally:
        server.shutdown()
        thread.join()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
