"""Ray and one process compute the same bits from one spec with equal numbers of threads."""

import os

import pytest

from ditlab.api.training import train
from ditlab.home import Home
from support.clusters.unbroken import checkpoint_of
from support.journals import read_records
from support.trainings.workers import same_state, tiny


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("threads", [1, 2])
def test_ray_and_one_process_compute_the_same_bits(ray, at_home, threads):
    """30 steps of a network that is wide enough for sums to be split among threads."""
    if threads > (os.cpu_count() or 1):
        pytest.skip("this machine has one core")
    wide = {"model__patch_size": 2, "model__width": 64, "model__num_heads": 4}
    fixed = {"batch": {"size": 128}, "training__steps": 30, "resources__cpus_per_worker": threads}
    states = []
    for local in (True, False):
        result = train(tiny(name=f"threads-{threads}-{local}", **wide, **fixed), local=local)
        (tags,) = [
            record["values"]
            for record in read_records(Home(at_home).run(result.run_id).journal)
            if record["kind"] == "tags" and "ditlab.threads" in record["values"]
        ]
        assert tags["ditlab.threads"] == str(threads)
        states.append(checkpoint_of(at_home, result.run_id))
    assert same_state(*states)
