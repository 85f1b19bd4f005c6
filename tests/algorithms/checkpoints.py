"""What the tests of every algorithm's checkpoint format share: `<algorithm>/test_format.py`.

A `draft` is a random one for the toy verifier of the fixture `verifier` (conftest.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import algorithms
from algorithms.contract import VerifierWeights
from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.schema import DraftConfig, algorithm_keys

Content = dict[str, Any]
Tensors = dict[str, Tensor]
Change = Callable[[Content, Tensors], Any]
VERIFIER = {"verifier": {"name_or_path": "models/toy"}}  # as the harness adds it


def check_tensors(algorithm: str, draft: nn.Module, settings: Any) -> None:
    """Exactly the declared tensors are exported, in the declared shapes; `settings` name the draft in a failure."""
    kind = algorithms.load(algorithm)
    content, tensors = kind.export(draft)
    required, optional = kind.format.required_tensors(content), kind.format.optional_tensors(content)
    assert not required.keys() & optional.keys()
    assert required.keys() <= tensors.keys() <= required.keys() | optional.keys(), settings
    for name, tensor in tensors.items():
        assert tuple(tensor.shape) == (required | optional)[name], (settings, name)


def check_keys(algorithm: str, draft: nn.Module) -> None:
    """Only keys that the server knows are exported, and all that it needs."""
    kind = algorithms.load(algorithm)
    content = kind.export(draft)[0]
    kind.format.Keys.model_validate(algorithm_keys(content))
    section = content["speculators_config"] | VERIFIER
    DraftConfig.model_validate(content | {"speculators_config": section})


def restored_without(
    algorithm: str, draft: nn.Module, verifier: VerifierWeights, keys: tuple[str, ...], change: Change = lambda *_: None
) -> nn.Module:
    """The draft of the checkpoint without what may be left out, once it drafted as `draft` does.

    Left out are `keys`, the vocabulary's size, the kinds of layers and the verifier's own head; then comes `change`.
    """
    kind = algorithms.load(algorithm)
    content, tensors = kind.export(draft)
    for key in keys:
        del content[key]
    content["draft_vocab_size"] = None
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    content["transformer_layer_config"].pop("layer_types")
    del tensors["lm_head.weight"]
    assert kind.format.required_tensors(content).keys() <= tensors.keys()
    change(content, tensors)
    again = kind.restore(content, tensors, verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64)
    assert torch.equal(*(kind.propose(each, tokens, states, 3) for each in (draft, again)))
    return again


def faults(algorithm: str, draft: nn.Module, change: Change = lambda *_: None) -> dict[str, str]:
    """Faults by rule once `change` was applied to (content, tensors)."""
    content, tensors = algorithms.load(algorithm).export(draft)
    content["speculators_config"] |= VERIFIER
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    change(content, tensors)
    return {found.rule: found.found for found in checkpoint_faults(content, tensors)}


def with_layer(**keys: Any) -> Change:
    """Put keys into the layer's config."""
    return lambda content, _: content["transformer_layer_config"].update(keys)


def with_keys(**keys: Any) -> Change:
    """Put keys into the config."""
    return lambda content, _: content.update(keys)


def without(name: str) -> Change:
    """Leave out a key, or a tensor."""
    return lambda content, tensors: (content if name in content else tensors).pop(name)


def with_tensor(name: str, tensor: Tensor) -> Change:
    """Put in a tensor."""
    return lambda _, tensors: tensors.update({name: tensor})
