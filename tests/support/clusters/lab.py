"""Services of a team beside its nodes: an S3 server, and MLflow behind a password, on loopback."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.clusters.nodes import RayNodes, bare_python, object_store_keys, ray_nodes
from support.object_store.s3 import S3Server, s3_at_hand
from support.served import Served, account, guarded

BUCKET = "lab"


@dataclass
class Mlflow:
    """MLflow's server with accounts in a process of its own, and its administrator's account."""

    server: Served
    account: dict[str, str]

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its clients."""
        return {"MLFLOW_TRACKING_URI": self.url, **self.account}

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Call the API as the administrator, by POST where there is a body."""
        content = json.dumps(body).encode() if body else None
        login = ":".join(self.account.values())
        path = f"/api/2.0/mlflow/{path}"
        status, answer = self.server.ask(path, login, content, Content_Type="application/json")
        assert status == 200, (status, answer)
        found: dict[str, Any] = json.loads(answer)
        return found

    def run(self, run_id: str) -> dict[str, Any]:
        """The one MLflow run with our run id."""
        experiments = [
            one["experiment_id"]
            for one in self.ask("experiments/search", max_results=100)["experiments"]
        ]
        found = self.ask(
            "runs/search", experiment_ids=experiments, filter=f"tags.`ditlab.run` = '{run_id}'"
        ).get("runs", [])
        assert len(found) == 1, found
        run: dict[str, Any] = found[0]
        return run

    def steps(self, mlflow_run_id: str, metric: str) -> list[int]:
        """Steps of every point of a metric, in the order they were logged."""
        path = f"metrics/get-history?run_id={mlflow_run_id}&metric_key={metric}&max_results=25000"
        return [int(point["step"]) for point in self.ask(path).get("metrics", [])]


@dataclass
class Lab:
    """A cluster's nodes and services."""

    home: Path
    """DITLAB_HOME of all nodes."""
    s3: S3Server
    mlflow: Mlflow
    mlflow_home: Path
    nodes: RayNodes

    @property
    def storage(self) -> str:
        """URI for checkpoints."""
        return f"s3://{BUCKET}/checkpoints?{self.s3.query}"

    @property
    def client(self) -> dict[str, str]:
        """Environment of a person who may use the cluster, without the keys of its nodes."""
        mine = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**mine, **self.nodes.access, "RAY_API_SERVER_ADDRESS": self.nodes.jobs}


@contextmanager
def lab(folder: Path, **environment: str) -> Iterator[Lab]:
    """Start the services for nodes (none yet) whose Python has no DiTLab; stop all of them at the
    end.
    """
    with ExitStack() as stack:
        python = bare_python(folder / "python")
        s3 = stack.enter_context(s3_at_hand(BUCKET))
        mlflow = stack.enter_context(mlflow_behind_password(folder / "mlflow"))
        home = folder / "home"
        home.mkdir()
        own = {
            "DITLAB_HOME": str(home),
            **object_store_keys(),
            "AWS_EC2_METADATA_DISABLED": "true",
            **mlflow.environment,
        }
        nodes = stack.enter_context(ray_nodes(folder / "nodes", python, **own, **environment))
        yield Lab(home, s3, mlflow, folder / "mlflow", nodes)


@contextmanager
def mlflow_behind_password(home: Path) -> Iterator[Mlflow]:
    """Start an MLflow server with a home of its own, so that it outlives any cluster."""
    home.mkdir(parents=True, exist_ok=True)
    own = account(secrets.token_hex(12))
    with guarded(home, home / "server.log", own) as server:
        yield Mlflow(server, own)
