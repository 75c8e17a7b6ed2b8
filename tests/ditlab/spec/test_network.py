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


def test_by_default_collectives_outlast_the_watch():
    resources = Resources()
    assert resources.collective_timeout == 1800
    assert Resources(hang_timeout=1500).collective_timeout == 3000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("timeout=300", ["resources.network.timeout=300", "resources.hang_timeout=600"]),
        ("timeout=0", ["resources.network.timeout"]),
    ],
)
def test_senseless_settings_are_refused_in_one_sentence(tmp_path, change, words):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    with pytest.raises(UserError) as refused:
        load_experiment(path, [f"resources.network.{change}"])
    assert all(word in str(refused.value) for word in words), str(refused.value)
