"""Measures one served variant, and compares variants: `python -m harness.evaluation measure|match|parity`.

`measure` starts one server and asks it for everything (`measure`, with `replies`, `acceptance`, `accuracy`, `latency`);
`match` compares the replies of two variants; `parity` compares served acceptance with the reference drafting loop.
`statistics` holds the intervals, which the reports use too.
"""
