"""The second model runner on vLLM's CPU build: our kernels against the interpreted originals, drafts served by it.

The drafts are random, of two layers each and with windows on one of them in one case, in float32.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import torch

from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.evaluation.acceptance import count_details, settled_counters
from harness.evaluation.client import Chat
from harness.sections.serve import Serve
from harness.serving import running_server
from harness.serving.cpu_support.replacing import KERNELS, SPECULATOR_KERNELS
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.serving import needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 600.0
K, NEW_TOKENS = 3, 24
SERVE = Serve(dtype="float32", max_model_len=256, max_num_seqs=4, kv_cache_gb=0.25)
MASKED = {"speculative_tokens": K, "mask_token_id": toy.VOCABULARY - 1, "layers": 2}
DRAFTS = {
    "dflash2": MASKED | {"block_size": K + 1, "selector_rank": 8, "selector_top_k": 4},
    "dspark": MASKED | {"block_size": K, "markov_rank": 8},
}
PROBABILISTIC = {"speculative_config": {"draft_sample_method": "probabilistic"}}
MESSAGES = [(f"p{i}", [{"role": "user", "content": f"{i} and {7 * i}?" * (1 + i)}]) for i in range(6)]


def write_draft(folder, verifier, algorithm, **changes):
    """A random draft that names its verifier by its absolute path."""
    draft = toy.random_draft(load_weights(verifier), toy.VOCABULARY, algorithm=algorithm, **DRAFTS[algorithm] | changes)
    toy.write_draft(folder, draft, verifier.name, algorithm)
    config = json.loads((folder / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(verifier)
    return config, folder / "config.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the verifier, a draft of each kind, and one whose layers need two groups of cache."""
    root = tmp_path_factory.mktemp("second_runner")
    verifier = toy.write_verifier(root / "verifier")
    for name in DRAFTS:
        config, path = write_draft(root / name, verifier, name)
        path.write_text(json.dumps(config))
    config, path = write_draft(root / "mixed", verifier, "dspark", sample_from_anchor=False, block_size=K + 1)
    config["transformer_layer_config"] |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    path.write_text(json.dumps(config))
    return root


@pytest.fixture(scope="module")
def shadow(folder):
    jobs = {name: [name, {}] for name in ("verifier", *DRAFTS, "mixed")}
    jobs |= {f"{name}, probabilistic": [name, PROBABILISTIC] for name in DRAFTS}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.serving.shadow_kernels"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "shadow.json").read_text())


@pytest.mark.parametrize("kernel", sorted({*SPECULATOR_KERNELS, *(name for each in KERNELS.values() for name in each)}))
def test_a_replacement_does_what_its_kernel_does_at_every_launch(shadow, kernel):
    launches, interpreted, difference = shadow["kernels"][kernel]
    assert launches > interpreted
    assert difference is None


def test_settings_that_a_replacement_does_not_cover_go_to_the_interpreter(shadow):
    assert shadow["kernels"]["_rejection_kernel"][1] > 0
    assert all(len(reply) == 12 for replies in shadow["replies"].values() for reply in replies)


def test_greedy_replies_are_the_same_whatever_drafts(shadow):
    greedy = {name: [replies[0], replies[4]] for name, replies in shadow["replies"].items()}
    assert all(replies == greedy["verifier"] for replies in greedy.values())


def test_context_keys_are_normed_by_their_own_layer(shadow):
    assert shadow["context_norm"]["repaired"] < 1e-6
    assert shadow["context_norm"]["fused"] > 0.1, "this vLLM needs no repair: leave it out"


def plain_replies(verifier):
    """Greedy replies of the verifier alone, by transformers: (prompt ids, reply ids) by prompt id."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    tokenizer, replies = load_tokenizer(verifier), {}
    for name, messages in MESSAGES:
        ids = prompt_token_ids(tokenizer, messages)
        whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS)
        replies[name] = (ids, whole[0, len(ids) :].tolist())
    return replies


def complete(server, **more):
    body = {"model": server.model_name, "prompt": list(range(60, 80)), "max_tokens": 16, "ignore_eos": True, **more}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers), timeout=60) as reply:
        return json.load(reply)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_server_gives_what_is_measured_and_the_verifiers_own_words(folder, tmp_path, name):
    plain = plain_replies(folder / "verifier")
    with running_server(str(folder / name), SERVE, tmp_path / "server.log") as server:
        engine, support = server.report.settings["engine"], server.report.settings["support"]
        assert engine["model_runner"] == "V2"
        assert (engine["enable_chunked_prefill"], engine["enable_prefix_caching"]) == ("False", "False")
        assert "second model runner" in support[0] and "kernels in PyTorch" in support[1] and "k-norm" in support[2]
        before = settled_counters(server.metrics, server.model_name, K)
        answers = Chat(server.url, server.model_name, NEW_TOKENS, seed=0, logprobs=True).ask_all(MESSAGES, 3, name)
        after = settled_counters(server.metrics, server.model_name, K)
        sampled = [complete(server, temperature=0.9, seed=1, top_p=0.9, logprobs=2)["choices"][0] for _ in range(2)]
    for answer in answers:
        assert answer.error is None
        assert (answer.prompt_token_ids, answer.token_ids) == plain[answer.id]
        assert [best[0][0] for best in answer.top_logprobs] == answer.token_ids
        assert all(len(best) == 2 and best[0][1] >= best[1][1] for best in answer.top_logprobs)
        assert set(answer.spec["drafted_per_step"]) == {K}
    assert count_details(answers, K) == after.since(before)
    assert sampled[0]["text"] == sampled[1]["text"] and len(sampled[0]["logprobs"]["tokens"]) == 16
