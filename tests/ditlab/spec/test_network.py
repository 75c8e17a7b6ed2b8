"""`resources.network`: what becomes of it, and what is refused."""

from ditlab.spec.resources import Resources


def test_by_default_collectives_outlast_the_watch():
    resources = Resources()
    assert resources.collective_timeout == 1800
    assert Resources(hang_timeout=1500).collective_timeout == 3000
