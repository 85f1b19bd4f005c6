"""The memory a program took is its own, not that of the process which started it."""

import subprocess
import sys

from harness.memory import forget_peak_memory, memory_bytes, peak_memory_bytes

READ = "from harness.memory import peak_memory_bytes; print(peak_memory_bytes())"


def test_the_peak_holds_what_was_once_taken():
    before = peak_memory_bytes()
    taken = bytearray(b"1") * 300_000_000
    assert peak_memory_bytes() >= 300_000_000
    del taken
    assert peak_memory_bytes() >= max(before, 300_000_000)


def test_a_peak_that_is_forgotten_counts_from_then_on():
    taken = bytearray(b"1") * 300_000_000
    high = peak_memory_bytes()
    del taken
    forget_peak_memory()
    assert memory_bytes() <= peak_memory_bytes() <= high - 250_000_000


def test_a_program_started_by_a_large_one_counts_its_own_memory_only():
    large = bytearray(b"1") * 500_000_000
    told = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(large) > int(told) > 1_000_000
