"""The steps of a reproduction, each a command `python -m harness.<step>`, and what they share."""

from harness.interrupts import watch

watch()
