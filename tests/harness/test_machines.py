"""Constants of machines: in their units, and said where they come from."""

import re

import pytest

from harness.machines import KNOWN


@pytest.mark.parametrize("name", KNOWN)
def test_a_machine_says_what_its_shares_were_measured_on(name: str):
    machine = KNOWN[name]
    assert 0 < machine.training_share <= 1 and 0 < machine.serving_share <= 1 and 0 < machine.reading_share <= 1
    assert 1e9 < machine.memory_bytes < 1e12 and 1e10 < machine.bytes_per_s < 1e14
    assert re.search(r"\d{4}-\d{2}-\d{2}", machine.measured) if not machine.gpu else "not measured" in machine.measured
