"""`resources.network`: what becomes of it, and what is refused."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import load_experiment
from ditlab.spec.resources import Resources

SPEC = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
training: {steps: 4}
"""


def test_by_default_nothing_is_set_and_collectives_outlast_the_watch():
    resources = Resources()
    assert resources.network.environment() == {}
    assert resources.collective_timeout == 1800
    assert Resources(hang_timeout=1500).collective_timeout == 3000


def test_fields_become_variables_of_nccl_and_gloo():
    network = Resources.model_validate({"network": {"interface": "eth1", "nccl": {"NCCL_IB_TIMEOUT": 22}}}).network
    assert network.environment() == {
        "NCCL_SOCKET_IFNAME": "=eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_IB_TIMEOUT": "22",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("timeout=300", ["resources.network.timeout=300", "resources.hang_timeout=600"]),
        ("timeout=0", ["resources.network.timeout"]),
        ("interface=eth0,eth1", ["resources.network.interface='eth0,eth1'", "ip link"]),
        ("interface=^docker0", ["resources.network.interface"]),
        ("nccl={LD_PRELOAD: x}", ["resources.network.nccl.LD_PRELOAD", "NCCL_"]),
        ("nccl={NCCL_NET: 'http://ann:hunter22@host/'}", ["resources.network.nccl.NCCL_NET", "password"]),
    ],
)
def test_senseless_settings_are_refused_in_one_sentence(tmp_path, change, words):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    with pytest.raises(UserError) as refused:
        load_experiment(path, [f"resources.network.{change}"])
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "hunter22" not in str(refused.value)


def test_a_value_that_is_a_secret_of_the_environment_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh12345678")
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    with pytest.raises(UserError, match="secret") as refused:
        load_experiment(path, ["resources.network.nccl={NCCL_NET_PLUGIN: abcdefgh12345678}"])
    assert "abcdefgh12345678" not in str(refused.value)
