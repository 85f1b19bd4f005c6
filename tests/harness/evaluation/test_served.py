"""The measurements against real vLLM, with a toy verifier in float32: no drafting, prompt look-up, a random draft.

In float32 the three variants must give the same replies to the last token, and the server must draft exactly as the
reference loop does. The draft's vocabulary is what the verifier likes to say, so that some drafts are right.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.evaluation.acceptance import benchmark, identity_checks, settled_counters
from harness.evaluation.client import Chat
from harness.evaluation.match import compare
from harness.evaluation.parity import run_parity
from harness.evaluation.replies import Prompts, as_row
from harness.evaluation.settings import MatchSettings, ParitySettings
from harness.sections.serve import Ngram, Serve
from harness.serving import ngram_config, running_server
from harness.verifiers.weights import load_weights
from tests import toy

pytestmark = pytest.mark.slow

K, NEW_TOKENS, DRAFT_VOCABULARY = 3, 40, 12
SERVE = Serve(dtype="float32", max_model_len=256, max_num_seqs=4, kv_cache_gb=0.25)
EVERY_TOKEN = MatchSettings(near_tie_nats=0.5, exact=True, scale="smoke")
EXACT = ParitySettings(dtype="float32", bootstrap_resamples=200, seed=0, margin_tokens=0.0, scale="smoke")
ROWS = [
    {"id": f"p{i}", "source": "word_problems", "messages": [{"role": "user", "content": f"{i} and {7 * i}?"}]}
    for i in range(8)
]


def liked_tokens(verifier):
    """Ids that the verifier's greedy replies use most, ascending."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    tokenizer, said = load_tokenizer(verifier), Counter()
    for row in ROWS:
        inputs = torch.tensor([prompt_token_ids(tokenizer, row["messages"])])
        reply = model.generate(inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=toy.VOCABULARY - 1)
        said.update(reply[0, inputs.shape[1] :].tolist())
    return torch.tensor(sorted(token for token, _ in said.most_common(DRAFT_VOCABULARY)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(verifier, draft as it is published, draft as it is served): the last names its verifier by its absolute path."""
    folder = tmp_path_factory.mktemp("served")
    verifier = toy.write_verifier(folder / "verifier")
    with pytest.MonkeyPatch.context() as patch:
        chosen = liked_tokens(verifier)
        patch.setattr(toy, "draft_vocabulary", lambda _: chosen)
        draft = toy.random_draft(load_weights(verifier), len(chosen), speculative_tokens=K)
    # What the model's own files would sample with; no request may take it from there.
    sampling = json.loads((verifier / "generation_config.json").read_text())
    sampling |= {"do_sample": True, "temperature": 0.9, "top_k": 20, "repetition_penalty": 1.5}
    (verifier / "generation_config.json").write_text(json.dumps(sampling))
    published = toy.write_draft(folder / "draft", draft, "models/toy")
    served = shutil.copytree(published, folder / "served")
    config = json.loads((served / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(verifier)
    (served / "config.json").write_text(json.dumps(config))
    return verifier, published, served


def measured(model, verifier, log, draft_tokens, speculative=None):
    """(rows of replies.jsonl, figures, identity checks) of one server, one request at a time."""
    prompts = Prompts(ROWS, verifier, None)
    with running_server(str(model), SERVE, log, speculative) as server:
        chat = Chat(server.url, server.model_name, NEW_TOKENS, seed=0, logprobs=True)

        def scrape():
            return settled_counters(server.metrics, server.model_name, draft_tokens) if draft_tokens else None

        before = scrape()
        answers = prompts.ask(chat, ROWS, 1, "test")
        rows = [as_row(answer, "word_problems") for answer in answers]
        assert all(answer.error is None for answer in answers)
        if before is None:
            text = "Question: 2 and 3?\nAnswer:"
            continued = Chat(server.url, server.model_name, 4, seed=0).ask_all([("text", text)], 1, "test", stop=["3"])
            assert continued[0].error is None and continued[0].token_ids
            prompts.check(continued, {"text": text})
            return rows, None, None
        counters = scrape().since(before)
        figures = benchmark(counters, answers, 200, seed=0)
        return rows, figures, identity_checks(figures, counters, answers)


@pytest.fixture(scope="module")
def base(folders, tmp_path_factory):
    log = tmp_path_factory.mktemp("base") / "server.log"
    return measured(folders[0], folders[0], log, 0)[0]


@pytest.fixture(scope="module")
def drafted(folders, tmp_path_factory):
    verifier, _, served = folders
    return measured(served, verifier, tmp_path_factory.mktemp("drafted") / "server.log", K)


def test_every_token_comes_with_its_two_likeliest_candidates(base):
    for row in base:
        assert len(row["top_logprobs"]) == len(row["token_texts"]) == len(row["token_ids"]) > 0
        for token, candidates in zip(row["token_ids"], row["top_logprobs"], strict=True):
            assert len(candidates) == 2
            assert token == max(candidates, key=lambda candidate: candidate[1])[0], "greedy, whatever the files say"
        assert row["spec"] is None


def test_a_draft_changes_no_token_in_float32(base, drafted):
    found = compare(base, drafted[0], EVERY_TOKEN)
    assert (found["exact"], found["total"]) == (len(ROWS), len(ROWS))


def test_the_counters_equal_the_replies_own_records(drafted):
    _, figures, checks = drafted
    assert all(checks.values())
    assert figures["drafts"] > 0
    assert figures["accepted"] > 0, "the case says nothing if no draft is accepted"
    assert figures["emitted_tokens_per_step"] is not None


def test_the_server_drafts_exactly_as_the_reference_loop(folders, drafted):
    verifier, published, _ = folders
    found = run_parity(published, verifier, drafted[0], EXACT)
    benchmark_ = found["benchmarks"]["word_problems"]
    assert benchmark_["replies_with_equal_steps"] == len(ROWS)
    assert (benchmark_["gap"], found["within"]) == (0, True)


def test_prompt_lookup_changes_no_token_either(base, folders, tmp_path: Path):
    speculative = ngram_config(Ngram(speculative_tokens=K, lookup_min=2, lookup_max=4))
    rows, figures, checks = measured(folders[0], folders[0], tmp_path / "server.log", K, speculative)
    assert compare(base, rows, EVERY_TOKEN)["exact"] == len(ROWS)
    assert checks["scrapes_equal_replies"]
    assert figures["drafts"] > 0


def test_what_else_is_served_changes_no_number(tmp_path: Path):
    """In bfloat16, eight requests at once and one at a time: the same tokens with the same log-probabilities."""
    verifier = toy.write_verifier(tmp_path / "verifier", dtype=torch.bfloat16)
    serve = SERVE.model_copy(update={"dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 8})
    rows = [
        {"id": f"p{i}", "source": "word_problems", "messages": [{"role": "user", "content": f"{i} and {7 * i}? " * 12}]}
        for i in range(12)
    ]
    prompts = Prompts(rows, verifier, None)
    with running_server(str(verifier), serve, tmp_path / "server.log") as server:
        chat = Chat(server.url, server.model_name, 96, seed=0, logprobs=True)
        alone, together = (
            [as_row(answer, "word_problems") for answer in prompts.ask(chat, rows, at_once, "test")]
            for at_once in (1, 8)
        )
    assert compare(alone, together, EVERY_TOKEN)["exact"] == len(rows)
    assert [row["top_logprobs"] for row in alone] == [row["top_logprobs"] for row in together]
