"""cluster.yaml as Ray's cluster launcher would use it, on this machine: its own commands, the real
autoscaler, and nodes that are processes (Ray's fake multi-node provider)."""

import copy
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from support.clusters.nodes import CHECKOUT, free_ports

HEAD_ID = "f" * 51 + "00000"
HEAD_TYPE = "ray.head.default"  # the fake provider knows the head by this name alone

KINDS = (
    "initialization",
    "setup",
    "head_setup",
    "worker_setup",
    "head_start_ray",
    "worker_start_ray",
)
"""Kinds of commands, in the order in which a node sees them."""

WATCH = """
import json, socket, sys, time, ray
host, port = sys.argv[1].split(":")
while socket.socket().connect_ex((host, int(port))):
    time.sleep(0.3)
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
while True:
    print(json.dumps([n["Resources"] for n in ray.nodes() if n["Alive"]]), flush=True)
    time.sleep(0.3)
"""


def cluster_file() -> dict[str, Any]:
    """The file as it is shipped."""
    config: dict[str, Any] = YAML(typ="safe").load(CHECKOUT / "cluster.yaml")
    return config


def commands(config: dict[str, Any]) -> list[str]:
    """Every command of the file, in the order in which a node sees them."""
    return [command for kind in KINDS for command in config[f"{kind}_commands"]]


def fake_config(
    config: dict[str, Any], cores: int, workers: int, idle_minutes: float, address: str
) -> dict[str, Any]:
    """The same node types without GPUs, as processes of this machine.

    `fake_multinode` itself cannot be named: its example.yaml, where Ray looks for defaults, is not
    in the wheel.
    """
    fake = copy.deepcopy(config)
    types = fake["available_node_types"]
    head = types.pop(fake["head_node_type"])
    for node_type in types.values():
        node_type.update(resources={"CPU": cores}, node_config={}, max_workers=workers)
    types[HEAD_TYPE] = {"resources": head["resources"], "node_config": {}, "max_workers": 0}
    provider = {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "gcs_address": address,
        "head_node_id": HEAD_ID,
        "launch_multiple": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    none = {f"{kind}_commands": [] for kind in KINDS}
    rest = {
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
    }
    return {
        **fake,
        **none,
        **rest,
        "rsync_filter": [],
        "provider": provider,
        "head_node_type": HEAD_TYPE,
        "max_workers": workers,
        "idle_timeout_minutes": idle_minutes,
    }


class FakeCluster:
    """A head, started by cluster.yaml's own commands in a home of its own, and what its autoscaler
    adds.
    """

    def __init__(self, folder: Path, cores: int, workers: int, idle_minutes: float) -> None:
        import ray

        self.home, self.shared = folder / "user", folder / "shared"
        self.token = secrets.token_hex(32)
        self.address = f"{ray.util.get_node_ip_address()}:{free_ports(1)[0]}"
        # short enough for the names of sockets
        self._temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._config = cluster_file()
        fake = fake_config(self._config, cores, workers, idle_minutes, self.address)
        (self.home / ".ray").mkdir(parents=True)
        (self.home / ".ray" / "auth_token").write_text(self.token)
        (self.home / "ditlab.env").write_text("MLFLOW_TRACKING_USERNAME=ditlab\n")
        (self.home / "ray_bootstrap_config.yaml").write_text(json.dumps(fake))
        self._head: subprocess.Popen[bytes] | None = None
        self.log = folder / "head.log"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a node before cluster.yaml's commands, with those of the launcher and the
        fake provider.
        """
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        launcher = {
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_NODE_TYPE_NAME": HEAD_TYPE,
        }
        fake = {
            "RAY_FAKE_CLUSTER": "1",
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        return {"HOME": str(self.home), "PATH": path, "OMP_NUM_THREADS": "1", **launcher, **fake}

    @property
    def access(self) -> dict[str, str]:
        """Environment that a client needs."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def start(self) -> None:
        # the files' modes, and ~/ditlab.settings
        for command in self._config["setup_commands"][:2]:
            subprocess.run(
                ["bash", "-c", self._here(command)], env=self.environment, check=True, timeout=20
            )
        port = self.address.rpartition(":")[2]
        (start,) = [
            command for command in self._config["head_start_ray_commands"] if "ray start" in command
        ]
        here = self._here(start).replace("--port=6379", f"--port={port}").replace("=8076", "=0")
        # The launcher would give the head's resources by a variable, which the fake provider's
        # nodes take for theirs.
        cores = self._config["available_node_types"]["head"]["resources"]["CPU"]
        more = (
            f" --block --num-cpus={cores} --temp-dir={self._temp} "
            f"--dashboard-port={free_ports(1)[0]}"
        )
        with self.log.open("wb") as log:
            self._head = subprocess.Popen(
                ["bash", "-c", here + more],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _here(self, command: str) -> str:
        return command.replace("/mnt/ditlab", str(self.shared)).replace(
            "/opt/dlami/nvme", str(self.home / "nvme")
        )

    @contextmanager
    def watched(self, log: Path) -> Iterator[None]:
        """Record the alive nodes in a file during the block, one line each time."""
        environment = {**self.environment, **self.access}
        with log.open("wb") as out:
            watcher = subprocess.Popen(
                [sys.executable, "-c", WATCH, self.address], env=environment, stdout=out
            )
        try:
            yield
        finally:
            watcher.kill()
            watcher.wait(10)

    def stop(self) -> None:
        """All its processes: each names the cluster's own folder."""
        for _ in range(3):
            for process in psutil.process_iter(["cmdline"]):
                if any(self._temp in word for word in process.info["cmdline"] or []):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            time.sleep(0.3)
        if self._head:
            with suppress(ProcessLookupError):
                os.killpg(self._head.pid, signal.SIGKILL)
            self._head.wait(10)
        shutil.rmtree(self._temp, ignore_errors=True)


def workers_by_look(log: Path) -> list[int]:
    """Number of nodes beside the head, in order of time."""
    looks = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
    return [sum("node:__internal_head__" not in node for node in look) for look in looks]
