"""What this program took of the machine's memory. Called by `harness.training` and the benchmarks."""

from pathlib import Path


def peak_memory_bytes() -> int:
    """Largest resident size of this program so far, in bytes.

    The kernel's own count: `getrusage` also knows that of the process which started the program, and keeps the larger.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
