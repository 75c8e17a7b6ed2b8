"""cluster.yaml: what Ray's own launcher makes of it, and what its schema does not see."""

import re
import subprocess
from pathlib import Path

import pytest

from support.clusters.launcher import CHECKOUT, cluster_file, commands


@pytest.fixture(scope="module")
def bootstrapped(tmp_path_factory):
    """The configuration that `ray up` makes of the file on moto's AWS: types looked up, key, group,
    role.
    """
    import boto3
    from moto import mock_aws

    home = tmp_path_factory.mktemp("user")
    account = {
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        mock_aws(config={"iam": {"load_aws_managed_policies": True}}),
    ):
        for name, value in account.items():
            patch.setenv(name, value)
        patch.chdir(CHECKOUT)
        _offer_few_instance_types(patch)
        from ray.autoscaler._private.aws import config as aws
        from ray.autoscaler._private.commands import _bootstrap_config

        # it waits for IAM, which moto needs not
        patch.setattr(aws.time, "sleep", lambda seconds: None)
        config = _bootstrap_config(cluster_file(), no_config_cache=True)
        yield config, boto3.resource("ec2", "us-east-1")


def _offer_few_instance_types(patch):
    """Leave two families of moto's 800 instance types, all of which Ray lists: that took most of
    the time.
    """
    from moto.ec2.models import instance_types

    offered = instance_types.InstanceTypeBackend
    kept = [
        each
        for each in offered.instance_types
        if each["InstanceType"].split(".")[0] in ("m6i", "g6e")
    ]
    patch.setattr(offered, "instance_types", kept)


@pytest.mark.slow
def test_ray_up_takes_it(bootstrapped):
    config, _ = bootstrapped
    types = config["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0} and types["head"]["max_workers"] == 0
    worker = types["gpu_worker"]
    assert (worker["min_workers"], worker["max_workers"]) == (0, config["max_workers"])
    # read off the instance type
    assert (worker["resources"]["CPU"], worker["resources"]["GPU"]) == (48, 4)
    assert "InstanceMarketOptions" not in types["head"]["node_config"]  # on demand
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}


@pytest.mark.slow
def test_the_world_reaches_ssh_alone(bootstrapped):
    config, ec2 = bootstrapped
    groups = set()
    for each in config["available_node_types"].values():
        groups.update(each["node_config"]["SecurityGroupIds"])
    (group,) = [ec2.SecurityGroup(name) for name in groups]
    (rule,) = [rule for rule in group.ip_permissions if rule["IpRanges"]]
    assert group.group_name == "ditlab-cluster" and rule["FromPort"] == rule["ToPort"] == 22


@pytest.mark.slow
def test_aws_takes_what_the_nodes_are_made_of(bootstrapped):
    """Every field of `node_config`, by EC2's own model, and by moto's EC2."""
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    config, ec2 = bootstrapped
    # all of moto's images take seconds to list
    linux = [{"Name": "name", "Values": ["amzn-ami-hvm-*"]}]
    image = next(iter(ec2.images.filter(Owners=["amazon"], Filters=linux)))
    provider = AWSNodeProvider({**config["provider"], "type": "aws"}, config["cluster_name"])
    for name, node_type in config["available_node_types"].items():
        node = {**node_type["node_config"], "ImageId": image.id}
        provider.create_node(node, {"ray-node-name": name, "ray-user-node-type": name}, 1)
    kinds = {instance.instance_type: instance for instance in ec2.instances.all()}
    assert set(kinds) == {"m6i.xlarge", "g6e.12xlarge"}
    assert kinds["g6e.12xlarge"].instance_lifecycle == "spot"


def test_everything_that_is_sent_is_here_or_explained():
    text = (CHECKOUT / "cluster.yaml").read_text()
    for source in cluster_file()["file_mounts"].values():
        if source.startswith("~"):
            assert f"> {source}" in text, f"nobody says how to make {source}"
        else:
            assert (CHECKOUT / source).exists(), source


def test_what_is_sent_is_enough_to_build_the_wheel():
    import tomllib

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    facts = project["project"]
    needed = {facts["readme"], *facts["license-files"], *(Path(each).parts[0] for each in packages)}
    assert needed <= {Path(source).parts[0] for source in cluster_file()["file_mounts"].values()}
    wanted = re.findall(r"ditlab\[([a-z,]+)\]", " ".join(commands(cluster_file())))
    assert wanted and set(",".join(wanted).split(",")) <= set(facts["optional-dependencies"])


@pytest.mark.parametrize("command", commands(cluster_file()))
def test_a_command_is_one_to_bash(command):
    """Command as Ray wraps it: in parentheses, so that a comment at its end would swallow the
    closing one.
    """
    parsed = subprocess.run(
        ["bash", "-n", "-c", f"true && ({command})"], capture_output=True, text=True, timeout=10
    )
    assert parsed.returncode == 0, parsed.stderr


def settings_command():
    """The command that writes ~/ditlab.settings."""
    (found,) = [each for each in cluster_file()["setup_commands"] if "> ~/ditlab.settings" in each]
    return found


def test_start_commands_use_only_what_is_set():
    """Variables come from the launcher, the shell, or ~/ditlab.settings."""
    config = cluster_file()
    known = {"HOME", "PATH", "RAY_HEAD_IP"}
    for command in commands(config):
        used = set(re.findall(r"\$\{?([A-Za-z_]+)", command))
        assert used <= known, (command, used - known)
    # workers alone have it
    assert not any("$RAY_HEAD_IP" in command for command in config["head_start_ray_commands"])
    names = set(re.findall(r"([A-Za-z_]+)=", settings_command()))
    assert {"DITLAB_HOME", "DITLAB_CACHE", "RAY_AUTH_MODE", "RAY_JOB_STOP_WAIT_TIME_S"} <= names


def test_the_settings_file_is_one_that_a_shell_and_systemd_read(tmp_path):
    known = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def bash(text):
        return subprocess.check_output(["bash", "-c", text], env=known, timeout=10, text=True)

    bash(settings_command())
    lines = (tmp_path / "ditlab.settings").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z_]+=[\w/.]+", line) for line in lines), lines
    told = bash("set -a; . ~/ditlab.settings; set +a; env")
    assert set(lines) <= set(told.splitlines())


def test_no_secret_is_in_it_and_no_door_is_open():
    text = (CHECKOUT / "cluster.yaml").read_text()
    config = cluster_file()
    assert not re.search(r"AKIA[0-9A-Z]{12}|(PASSWORD|TOKEN|SECRET[A-Z_]*)=[^$.\s\n]", text)
    (start,) = [each for each in config["head_start_ray_commands"] if "ray start" in each]
    assert "--dashboard-host=127.0.0.1" in start
    served = [each for each in config["head_start_ray_commands"] if "mlflow server" in each]
    assert len(served) == 1 and "--app-name basic-auth" in served[0]
    assert "chmod 600 ~/ditlab.env ~/.ray/auth_token" in config["setup_commands"]


def test_mlflows_line_is_one_that_mlflow_takes():
    """The options of `mlflow server`, as click reads them."""
    import shlex

    from mlflow.cli import server

    (served,) = [
        each for each in cluster_file()["head_start_ray_commands"] if "mlflow server" in each
    ]
    words = shlex.split(served.partition("mlflow server")[2])
    words = ["10.0.0.5:5000" if "hostname" in word else word for word in words]
    given = server.make_context("server", words).params
    assert (given["app_name"], given["host"], given["port"]) == ("basic-auth", "0.0.0.0", 5000)
    assert given["artifacts_destination"] == "s3://BUCKET/mlflow"
    assert given["allowed_hosts"] == "10.0.0.5:5000"


def test_whoever_fills_it_in_finds_each_place():
    """Every placeholder has the word CHANGE beside it, or in the comment above."""
    lines = (CHECKOUT / "cluster.yaml").read_text().splitlines()
    own = re.compile(
        r"ami-0{9}|fs-0{9}|artifacts-destination s3://BUCKET|^  (region|availability_zone):"
    )
    places = [number for number, line in enumerate(lines) if own.search(line)]
    assert len(places) == 5
    for number in places:
        assert "CHANGE" in " ".join(lines[max(0, number - 6) : number + 1]), lines[number]
