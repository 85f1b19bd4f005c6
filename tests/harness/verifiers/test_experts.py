"""All experts at once: the same model as the family's own code, forwards and backwards."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.verifiers.miniature.experts import register_experts
from harness.verifiers.miniature.families import FAMILIES, model_config

VOCABULARY = 64


def _model(name: str, implementation: str) -> Any:
    ids = {token: number for number, token in enumerate(FAMILIES[name].special_tokens)}
    config = model_config(FAMILIES[name], VOCABULARY, ids)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation=implementation)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_logits_and_gradients_are_those_of_the_familys_own_code(name: str) -> None:
    theirs, ours = _model(name, "eager"), _model(name, register_experts())
    with torch.no_grad():  # routers and biases start at zero, where every choice is a tie
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    ours.load_state_dict(theirs.state_dict())
    ids_BS = torch.randint(0, VOCABULARY, (3, 11))
    logits = [model(input_ids=ids_BS).logits for model in (theirs, ours)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    for each in logits:
        each.square().sum().backward()
    for (which, one), two in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(
            two.grad, one.grad, rtol=1e-3, atol=1e-4, msg=lambda text, which=which: f"{which}: {text}"
        )


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_a_saved_model_says_nothing_of_how_it_was_trained(name: str, tmp_path: Any) -> None:
    _model(name, register_experts()).save_pretrained(tmp_path)
    assert "experts_implementation" not in (tmp_path / "config.json").read_text()
