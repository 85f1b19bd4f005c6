"""A verifier for the tests of checkpoint formats."""

import pytest

from harness.verifiers.weights import load_weights
from tests import toy


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))
