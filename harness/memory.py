"""What this program takes of the machine's memory. Called by `harness.training` and the benchmarks."""

from pathlib import Path


def peak_memory_bytes() -> int:
    """Largest resident size of this program so far, or since `forget_peak_memory`, in bytes.

    The kernel's own count: `getrusage` also knows that of the process which started the program, and keeps the larger.
    """
    return _status("VmHWM:")


def memory_bytes() -> int:
    """Resident size of this program now, in bytes."""
    return _status("VmRSS:")


def forget_peak_memory() -> None:
    """Let `peak_memory_bytes` count from now."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak and nothing else


def _status(key: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(key)[2].split()[0])
