"""Measures one served variant, and compares variants: `python -m harness.evaluation measure|match|parity|lossless`.

`measure` starts one server and asks it for everything (`measure`, with `replies`, `acceptance`, `sampling`,
`accuracy`, `latency`); `match` compares the replies of two variants; `parity` compares served acceptance with the
reference `loop`, and `diagnosis` names the trap behind a gap; `lossless` tests sampled replies, with `uniformity`.
`statistics` holds the intervals, which the reports use too.
"""
