"""Ray nodes as processes on loopback, each started by `ray start`, that can be killed as machines
are.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).parents[3]
# A lost node is noticed within 5 s (30 by default), and a group of workers waits 10 s for room
# (60).
QUICK = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "10",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


def bare_python(folder: Path) -> Path:
    """A Python that has everything this one has but DiTLab: what a node has before a job brings the
    code.

    A `.pth` file names this one's packages: the editable install among them is a `.pth` file
    itself, which Python does not follow from there.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    packages = (
        folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    )
    (packages / "deps.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    refused = subprocess.run(
        [str(python), "-c", "import ditlab.home"], capture_output=True, timeout=60, cwd=folder
    )
    assert refused.returncode, "this Python finds DiTLab"
    return python


class RayNode:
    """One node: `ray start --block` and all that it has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process, self.log = process, log
        self.id = ""
        """Id by Ray, once the node has joined the head."""

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Processes of the node, parents first."""
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def titles(self) -> list[str]:
        """Command lines of its processes, in which Ray names the work of each."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                found.append(" ".join(process.cmdline()))
        return found

    def kill(self) -> None:
        """All its processes at once, as when a machine loses its power."""
        there = self.processes()
        self.freeze()  # so that none of them acts upon the death of another
        for process in {*there, *self.processes()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)

    def freeze(self) -> None:
        """All its processes stop where they are, until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class RayNodes:
    """A cluster on this machine: a head and as many nodes as are added, with a token of its own.

    `environment` is what `ray start` is called in, as a node's start commands would set it.
    """

    def __init__(
        self, folder: Path, python: Path | str = sys.executable, **environment: str
    ) -> None:
        self.folder, self.python = folder, str(python)
        folder.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_hex(16)
        # Sockets have short names at most: a test's own folder is too deep for them.
        self._temp = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._environment = environment
        self.nodes: list[RayNode] = []
        self.port = self.dashboard_port = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the nodes; of this process's, only the variables that every program
        needs.
        """
        known = {
            name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ
        }
        path = os.pathsep.join([str(Path(self.python).parent), os.environ.get("PATH", "")])
        common = {
            "PATH": path,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "RAY_DISABLE_IMPORT_WARNING": "1",
        }
        return {**known, **common, **QUICK, **self.access, **self._environment}

    @property
    def access(self) -> dict[str, str]:
        """Environment that a client of the cluster needs."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    @property
    def address(self) -> str:
        """Address for `--address` of a driver."""
        return f"127.0.0.1:{self.port}"

    @property
    def jobs(self) -> str:
        """Address of the job server."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start_head(self, num_cpus: int = 1, **environment: str) -> RayNode:
        """Start a head, also in place of one that was killed. Returns when its job server
        answers.
        """
        self.port, self.dashboard_port, client_port = free_ports(3)
        arguments = [
            "--head",
            f"--port={self.port}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.dashboard_port}",
            "--include-dashboard=true",
            f"--ray-client-server-port={client_port}",
        ]
        head = self._start("head", [*arguments, f"--num-cpus={num_cpus}"], environment)
        wait_for(
            lambda: self.get("/api/version") is not None or not head.is_alive(),
            180,
            "the job server",
        )
        wait_for(lambda: self.alive() or not head.is_alive(), 90, "the head among the nodes")
        assert head.is_alive(), head.log.read_text()
        return head

    def add_node(self, num_cpus: int = 1, **environment: str) -> RayNode:
        """Add a node. Returns when it has joined the head."""
        before, arguments = self._ids(), [f"--address={self.address}", f"--num-cpus={num_cpus}"]
        # Ray gives up a start that takes 30 s, as on a machine that is busy with others
        for _ in range(3):
            node = self._start("node", arguments, environment)
            wait_for(lambda: bool(self._ids() - before) or not node.is_alive(), 120, "the new node")  # noqa: B023
            if node.is_alive():
                break
        assert node.is_alive(), node.log.read_text()
        (node.id,) = self._ids() - before
        return node

    def alive(self) -> list[dict[str, Any]]:
        """Nodes that the head lists as alive, as its State API describes them."""
        answer = self.get("/api/v0/nodes?limit=100")
        rows = answer["data"]["result"]["result"] if answer else []
        return [row for row in rows if row["state"] == "ALIVE"]

    def _ids(self) -> set[str]:
        return {row["node_id"] for row in self.alive()}

    def get(self, path: str) -> Any:
        """The job server's answer, parsed; None where there is none."""
        request = urllib.request.Request(
            self.jobs + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def session_logs(self) -> list[Path]:
        """Folders of Ray's session logs, one for each node."""
        return [path.resolve() for path in self._temp.glob("*/session_latest/logs")]

    def end(self) -> None:
        """Kill every node at once."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> RayNode:
        log = self.folder / f"{name}-{len(self.nodes)}.log"
        # of each node its own, as on machines of their own
        temp = self._temp / str(len(self.nodes))
        command = [
            self.python,
            "-m",
            "ray.scripts.scripts",
            "start",
            *arguments,
            "--node-ip-address=127.0.0.1",
            "--object-store-memory=100000000",
            f"--temp-dir={temp}",
            "--disable-usage-stats",
            "--block",
            # Of the ports with fixed numbers, nodes on one machine take any.
            "--dashboard-agent-listen-port=0",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                stdout=file,
                stderr=file,
                cwd=self.folder,
                start_new_session=True,
            )
        node = RayNode(process, log)
        self.nodes.append(node)
        return node


def object_store_keys() -> dict[str, str]:
    """Environment of a client of the object store of this process."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


@contextmanager
def ray_nodes(
    folder: Path, python: Path | str = sys.executable, **environment: str
) -> Iterator[RayNodes]:
    """A cluster without nodes yet, ended at the end."""
    cluster = RayNodes(folder, python, **environment)
    try:
        yield cluster
    finally:
        cluster.end()


def wait_for(is_so: Any, seconds: float, what: str) -> None:
    """Return once `is_so()` is true. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def free_ports(num: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(num)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
