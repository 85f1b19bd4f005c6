"""What harness.evaluation.machine says of the machine: by hand from counters, and of this machine itself."""

import subprocess
import sys

from harness.evaluation.machine import CpuTimes, cpu_times, kernel_ms, others_cpu_share, watched


def test_what_others_took_is_what_the_cores_worked_less_our_part():
    # 2 cores for 10 s: they worked 15 of 20 core-seconds, 9 of them for us.
    before, after = CpuTimes(100.0, 50.0, 3.0), CpuTimes(120.0, 65.0, 12.0)
    assert others_cpu_share(before, after) == 6 / 20
    assert others_cpu_share(before, before) == 0.0
    assert others_cpu_share(before, CpuTimes(120.0, 58.0, 12.0)) == 0.0  # counted in ticks, ours may seem more


def test_what_a_child_computes_is_ours_while_it_lives_and_after():
    burn = (
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('done', flush=True)"
    )
    before = cpu_times().ours
    with subprocess.Popen([sys.executable, "-c", f"{burn}\ninput()"], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout.readline() == "done\n"
        alive = cpu_times().ours - before
        child.stdin.write("\n")
        child.stdin.flush()
    assert alive >= 0.25
    assert cpu_times().ours - before >= alive - 0.02


def test_a_watched_block_has_the_fixed_piece_of_work_before_and_after_it(monkeypatch):
    assert kernel_ms(seconds=0.0) > 0
    times, found = [20.0, 22.0], {}
    monkeypatch.setattr("harness.evaluation.machine.kernel_ms", lambda: times.pop(0))
    with watched(found):
        assert times == [22.0]
    assert found["kernel_ms"] == {"before": 20.0, "after": 22.0}
    assert 0.0 <= found["others_cpu_share"] <= 1.0
