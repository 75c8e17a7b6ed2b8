"""Detection of workers that hang, from heartbeats made by hand."""

from ditlab.cluster.channel import HangDetector, heartbeat_interval
from support.clusters.reports import heartbeat


def ranks(hung):
    return [one.rank for one in hung]


def test_a_silent_worker_hangs_and_those_who_wait_for_it_do_not():
    detector = HangDetector(hang_timeout=10)
    assert detector.hung_workers([heartbeat(0), heartbeat(1)], now=0) == []
    assert detector.hung_workers([heartbeat(0, written=2.0), heartbeat(1)], now=9) == []
    assert ranks(detector.hung_workers([heartbeat(0, written=3.0), heartbeat(1)], now=11)) == [1]


def test_of_workers_without_progress_the_one_behind_hangs():
    detector = HangDetector(hang_timeout=10)
    waiting = [
        heartbeat(0, num_done=12, idle=11),
        heartbeat(1, num_done=11, idle=13),
        heartbeat(2, num_done=12, idle=11),
    ]
    assert ranks(detector.hung_workers(waiting, now=0)) == [1]
    working = [heartbeat(0, num_done=12, idle=11), heartbeat(1, num_done=13, idle=2)]
    assert detector.hung_workers(working, now=1) == []


def test_heartbeats_come_several_times_within_the_timeout():
    assert (heartbeat_interval(8), heartbeat_interval(600)) == (1.0, 2.0)
