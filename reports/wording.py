"""How metrics and their values are told: names taken apart, values with their units, intervals. Used by all pages."""

import re
from dataclasses import dataclass

from reports.metrics import AXES, METRICS, PERCENTILES, Metric

_NAME = re.compile(r"(?P<base>.+?)(?:_(?P<percentile>p\d+))?(?:_(?P<axis>[ckr]?)(?P<at>\d+(?:\.\d+)?))?")
WHOLE_MS = 50.0  # shorter times are written with a tenth
_STYLES = {
    "share": "{:.1%}",
    "ratio": "{:.2f}×",
    "tokens/s": "{:.1f}",
    "tokens": "{:.2f}",
    "ms": "{:.0f}",
    "s": "{:.2f}",
    "p": "{:.3f}",
    "nats": "{:.3f}",
}


@dataclass(frozen=True)
class Name:
    """A metric's name taken apart: `itl_ms_p50_c8` is (itl_ms, p50, c, 8)."""

    base: str
    percentile: str = ""
    axis: str = ""
    at: float | None = None


def parse(metric: str) -> Name:
    """A metric's name taken apart; accuracy differences of all extractions have one base."""
    found = _NAME.fullmatch(metric)
    if found is None:
        return Name(metric)
    base = re.sub(r"^accuracy_[a-z]+_difference$", "accuracy_difference", found["base"])
    at = None if found["at"] is None else float(found["at"])
    return Name(base, found["percentile"] or "", found["axis"] or "", at)


def base_name(metric: str) -> str:
    """`itl_ms` for `itl_ms_p50_c1`, `accuracy_difference` for `accuracy_strict_difference`: a key of `METRICS`."""
    return parse(metric).base


def described(metric: str) -> Metric:
    """The description of a metric; one that this version does not know is shown under its own name."""
    base = base_name(metric)
    return METRICS.get(base) or Metric(base.replace("_", " "), "", "Not described in this version.")


def place(metric: str) -> str:
    """What stands behind a metric's base name: `median, 8 requests at once`; nothing for a plain metric."""
    name = parse(metric)
    told = [PERCENTILES.get(name.percentile, name.percentile)] if name.percentile else []
    if name.at is not None:
        counted = AXES[name.axis] if name.at != 1 else AXES[name.axis].replace("requests", "request")
        told.append(f"{name.at:g} {counted}" if name.axis else f"{counted} {name.at:g}")
    if name.base == "accuracy_difference":
        told.append(metric.split("_")[1])
    return ", ".join(told)


def unit(metric: str) -> str:
    """Unit of a metric, as results.csv says it."""
    return described(metric).unit


def duration(seconds: float) -> str:
    """`4.2 s`, `48 s`, `3 min 12 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: float) -> str:
    """`940`, `68,120`, `3.42 M`."""
    return f"{value / 1e6:.2f} M" if abs(value) >= 1e6 else f"{value:,.0f}"


def signed(value: float, digits: int) -> str:
    """`+1.2`, `−0.8` (with a real minus sign), `0.0` without a sign."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text


def spread(metric: str, low: float | None, high: float | None) -> str:
    """An interval as people read it, the unit once at most: `84.0 to 95.0%`, `2.31 to 2.52`; nothing without bounds."""
    if low is None or high is None:
        return ""
    least, most = written(metric, low), written(metric, high).removesuffix("×")
    return f"{least.removesuffix('%').removesuffix('×')} to {most}"


def written(metric: str, value: float) -> str:
    """A value as people read it: `87.5%`, `2.41`, `1.42×`, `+0.8` (points), `39.1`."""
    name = base_name(metric)
    if name == "accuracy_difference":
        return signed(100 * value, 1)
    if name == "parity_gap":
        return signed(value, 3)
    if name == "training_seconds":
        return duration(value)
    if name == "training_peak_memory_bytes":
        return f"{value / 2**30:.2f} GiB"
    style = _STYLES.get(described(metric).unit, "{:.4g}")
    if described(metric).unit == "ms" and abs(value) < WHOLE_MS:
        style = "{:.1f}"
    whole = described(metric).unit == "count" or name == "training_tokens"
    return count(value) if whole else style.format(value)
