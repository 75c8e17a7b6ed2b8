"""docs/kubernetes: as far as a machine without Kubernetes can tell."""

import re
import shlex

import pytest
from ruamel.yaml import YAML

from ditlab.cluster.capacity import cpu_share
from ditlab.spec.files import load_experiment
from support.clusters.launcher import CHECKOUT

FOLDER = CHECKOUT / "docs" / "kubernetes"
YAML_1_2 = YAML(typ="safe")


def documents(name):
    return [each for each in YAML_1_2.load_all(FOLDER / name) if each]


@pytest.fixture
def job():
    (found,) = documents("rayjob.yaml")
    return found


def trained(job):
    """The experiment that the entrypoint trains, from the checkout that the image is made of."""
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "ditlab", "train"] and words[5:7] == ["--resume", "auto"]
    spec = CHECKOUT / words[4].removeprefix("/opt/ditlab/")
    assert words[7::2] == ["--set"] * len(words[8::2])
    return load_experiment(spec, tuple(words[8::2]))


def test_rays_own_autoscaler_reads_the_cluster(job):
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )

    cluster = {
        "metadata": {"name": "ditlab", "namespace": "default"},
        "spec": job["spec"]["rayClusterSpec"],
    }
    config = _derive_autoscaling_config_from_ray_cr(cluster)
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"]) == (0, 8)
    assert (types["gpu"]["resources"]["CPU"], types["gpu"]["resources"]["GPU"]) == (8, 1)
    assert config["idle_timeout_minutes"] == 10
    assert cpu_share(trained(job).resources, []).cpus == 8


def test_the_job_is_submitted_as_the_readme_does(job):
    told = YAML_1_2.load(job["spec"]["runtimeEnvYAML"])
    assert told == YAML_1_2.load(CHECKOUT / "platform" / "runtime_env.yaml")
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert trained(job).resources.max_workers == 2


def pods():
    (job,) = documents("rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    found = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    found += [each["spec"] for each in documents("ditlab.yaml") if each["kind"] == "Deployment"]
    return [each["template"]["spec"] for each in found]


def test_every_pod_finds_what_it_mounts_and_reads():
    there = {(each["kind"], each["metadata"]["name"]) for each in documents("ditlab.yaml")}
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claims = {
            one["persistentVolumeClaim"]["claimName"]
            for one in volumes.values()
            if "persistentVolumeClaim" in one
        }
        assert {("PersistentVolumeClaim", claim) for claim in claims} <= there
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
            for source in container["envFrom"]:
                if "configMapRef" in source:
                    assert ("ConfigMap", source["configMapRef"]["name"]) in there
                else:
                    assert f"create secret generic {source['secretRef']['name']} " in page
    assert len({container["image"] for pod in pods() for container in pod["containers"]}) == 1


def test_no_secret_is_written_down():
    for path in FOLDER.iterdir():
        assert not re.search(r"kind: Secret|PASSWORD:|_KEY:|TOKEN:", path.read_text()), path


def test_mlflow_asks_for_a_password_and_answers_under_its_services_name():
    from mlflow.cli import server

    every = {each["kind"]: each for each in documents("ditlab.yaml")}
    command = every["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"]
    given = server.make_context("server", command[2:]).params
    service = every["Service"]
    address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert given["app_name"] == "basic-auth" and given["allowed_hosts"] == address
    assert every["ConfigMap"]["data"]["MLFLOW_TRACKING_URI"] == f"http://{address}"


def test_the_images_ray_is_the_one_that_was_tested():
    (pinned,) = re.findall(r"(?m)^ray==(.*)$", (CHECKOUT / "constraints.txt").read_text())
    assert f"rayproject/ray:{pinned}-" in (FOLDER / "Dockerfile").read_text()
    (job,) = documents("rayjob.yaml")
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned
