"""From one reply to a served draft: a draft that has learned a reply by heart is accepted whole by vLLM.

Whatever is out of step between states, targets, training, export and serving costs acceptance here.
"""

import dataclasses
from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Algorithm, Batch, VerifierWeights
from algorithms.vocabulary import choose
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.serving import RECORDERS, needs_cpu_build, serve_drafts

pytestmark = [pytest.mark.slow, needs_cpu_build]

TOKENS = 3  # drafted a step
AUX_LAYERS = [1, 3, 5]
SERVED_TOKENS = 1 + 6 * (TOKENS + 1)  # the prefill's own, then six full steps
REPLY_TOKENS = SERVED_TOKENS + 12  # the last steps of a reply have no target to learn from
STEPS_MAX, CHECK_EVERY = 1500, 25
# Settings of each algorithm beside the number of tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "eagle3": {"ttt_steps": TOKENS, "norm_output": True, "draft_vocab_size": 64},
    "peagle": {"mask_token_id": 300, "num_depths": TOKENS, "draft_vocab_size": 64},
    "dflash": {"mask_token_id": 300, "block_size": TOKENS + 1, "draft_vocab_size": 64},
    "dflash2": {"mask_token_id": 300, "block_size": TOKENS + 1, "selector_rank": 8, "selector_top_k": 4},
    "dspark": {"mask_token_id": 300, "block_size": TOKENS, "markov_rank": 8, "draft_vocab_size": 64},
}


@torch.no_grad()
def greedy_document(folder, prompt: list[int]) -> Batch:
    """Prompt and greedy reply with the verifier's states, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokens = torch.tensor(prompt)
    for _ in range(REPLY_TOKENS):
        tokens = torch.cat((tokens, model(tokens[None]).logits[0, -1].argmax()[None]))
    kept = {}
    model.model.norm.register_forward_pre_hook(lambda _, given: kept.update(last=given[0][0]))
    states = model(tokens[None], output_hidden_states=True).hidden_states
    return Batch(
        token_ids_S=tokens,
        aux_states_SAH=torch.stack([states[layer][0] for layer in AUX_LAYERS], dim=1),
        last_state_SH=kept["last"],
        loss_mask_S=torch.arange(len(tokens)) >= len(prompt),
        document_S=torch.zeros(len(tokens), dtype=torch.long),
    )


def knows_by_heart(kind: Algorithm, draft: torch.nn.Module, batch: Batch) -> bool:
    """Whether its drafts are right from every position that serving can draft from."""
    reply = len(batch.token_ids_S) - REPLY_TOKENS
    drafts = kind.propose(draft, batch.token_ids_S, batch.aux_states_SAH, TOKENS)
    starts = range(reply - 1, reply + SERVED_TOKENS - TOKENS)
    return all(torch.equal(drafts[t], batch.token_ids_S[t + 2 : t + 2 + TOKENS]) for t in starts)


def learn_by_heart(algorithm: str, batch: Batch, verifier: VerifierWeights) -> torch.nn.Module:
    kind = algorithms.load(algorithm)
    config = kind.Config(speculative_tokens=TOKENS, **SETTINGS[algorithm])
    counts = torch.bincount(batch.token_ids_S[batch.loss_mask_S], minlength=toy.VOCABULARY)
    size = config.draft_vocab_size or toy.VOCABULARY
    draft = kind.build(config, verifier, choose(counts, size, [toy.TURN_END_ID]), AUX_LAYERS)
    objective = kind.objective(config, verifier, draft)
    optimizer = torch.optim.Adam([p for p in draft.parameters() if p.requires_grad], lr=2e-3)
    known = 0
    for step in range(STEPS_MAX):
        if step % CHECK_EVERY == 0:
            known = known + 1 if knows_by_heart(kind, draft, batch) else 0
        if known == 2:  # not by a hair
            return draft
        optimizer.zero_grad()
        out = objective(dataclasses.replace(batch, draw=step))
        out.loss.backward()
        optimizer.step()
    raise AssertionError(f"not learned in {STEPS_MAX} steps: {out.metrics}")


@pytest.fixture
def _one_thread():
    """The matrices are tiny: threads cost more than they bring, above all where others use the cores too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_every_draft_of_a_memorised_reply_is_accepted(tmp_path, algorithm):
    folder = toy.write_verifier(tmp_path / "verifier")
    prompt = torch.randint(0, 256, (20,), generator=torch.Generator().manual_seed(7)).tolist()
    batch = greedy_document(folder, prompt)
    toy.write_draft(tmp_path / "draft", learn_by_heart(algorithm, batch, load_weights(folder)), "verifier", algorithm)
    recorder = RECORDERS[algorithms.engine_runner(algorithm)]
    counts = {"draft": len(AUX_LAYERS)}
    served = serve_drafts(tmp_path, "verifier", [prompt], SERVED_TOKENS, counts, False, recorder)["draft"]
    reply = batch.token_ids_S[len(prompt) :][:SERVED_TOKENS].tolist()
    assert served.replies == served.plain == [reply]
    counted = {name.removeprefix("vllm:spec_decode_"): value for name, value in served.counters.items()}
    assert counted["num_drafts"] == 6
    assert 1 + counted["num_accepted_tokens"] / counted["num_drafts"] == TOKENS + 1
