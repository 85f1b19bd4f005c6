"""Runs killed at random moments, whole process groups at once: nothing lost, nothing finished made again, no leftovers.

The long one is a real run in small, from a toy verifier to drafts and their measurements, marked `endurance`:
`make test-kills`. It is compared with a run that nobody disturbed.
"""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from harness.files import read_jsonl
from tests import toy as toy_verifier
from tests.dag.conftest import ROOT, TARGET, Toy, copy_repository, make_toy
from tests.dag.kills import jobs_of, leftovers, run_with_kills, started
from tests.harness.training.toy_training import make_store

KILLS = 20
RECIPE = {
    "verifier": {"source": "folder", "id": "specproof/toy", "path": "toy_verifier"},
    "needs": {"cores": 1, "memory_gb": 2, "disk_gb": 1},
    "data": {
        "seed": 1,
        "train": [{"source": "word_problems", "rows": 24}, {"source": "instructions", "rows": 16}],
        "heldout": [{"source": "word_problems", "rows": 4}, {"source": "instructions", "rows": 2}],
        "reply": {"max_new_tokens": 24},
    },
    # One request at a time: another batch rounds otherwise, and other states train another draft.
    "capture": {"aux_layers": [1, 3, 5], "shard_rows": 8, "max_num_seqs": 1, "preflight_rows": 2},
    "training": {
        "seed": 1, "epochs": 12, "tokens_per_step": 512, "learning_rate": 2e-3, "optimizer": "muon",
        "compute_dtype": "float32", "checkpoint_minutes": 1e-3, "validation_share": 0.25,
    },
    "algorithms": {"eagle3": {"speculative_tokens": 3, "draft_vocab_size": 96}},
    "serve": {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 2, "kv_cache_gb": 0.2},
    "evaluate": {
        "acceptance": {"max_new_tokens": 24, "concurrency": 1},
        "accuracy": {"tasks": ["word_problems"], "limit": 2, "max_new_tokens": 16, "concurrency": 1},
        "latency": {"benchmark": "word_problems", "concurrency": [1], "requests": 3, "max_new_tokens": 16},
        "sampling": {"prompts": 2, "samples": 2, "max_new_tokens": 8, "concurrency": 1},
    },
    "gates": {"accuracy_drop_max": 1.0},
}  # fmt: skip


def known_answer(folder: Path) -> dict[str, str]:
    """A prompt whose greedy reply starts with a letter in both precisions: what a toy says means nothing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from harness.verifiers.checks import greedy_reply

    tokenizer = AutoTokenizer.from_pretrained(folder)
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval() for kind in (torch.bfloat16, torch.float32)
    ]
    for number in range(100):
        prompt = f"Say {number}."
        said = {tokenizer.decode(greedy_reply(model, tokenizer, prompt, 1)[0]) for model in models}
        if len(said) == 1 and (answer := said.pop()).isascii() and answer.isalnum():
            return {"prompt": prompt, "answer": answer}
    raise AssertionError("no reply starts with a letter or a digit")


def with_recipe(root: Path, check: dict[str, str]) -> Path:
    """Put the recipe in the place of all others; returns the root."""
    shutil.rmtree(root / "reproductions")
    recipe = root / "reproductions/killed"
    recipe.mkdir(parents=True)
    content = RECIPE | {"verifier_checks": [check]}
    (recipe / "reproduction.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (recipe / "published.yaml").write_text("[]\n")
    return root


def make_real(folder: Path) -> Path:
    """The real steps over a recipe for a toy verifier; returns the root."""
    root = copy_repository(folder)
    verifier = toy_verifier.write_verifier(root / "toy_verifier", max_position_embeddings=1024)
    return with_recipe(root, known_answer(verifier))


def make_half_real(folder: Path) -> Path:
    """Real training and lint; what needs an engine is made up beforehand and copied, or a stub; returns the root."""
    root = make_toy(folder).root
    for step in ("training", "checkpoint"):
        shutil.copy(ROOT / "harness" / step / "__main__.py", root / "harness" / step / "__main__.py")
    verifier = toy_verifier.write_verifier(root / "made/verifiers")
    (verifier / "verifier.json").write_text(json.dumps({"id": "toy", "sha256": "a" * 64}))
    make_store(root / "made/capture", verifier, lengths=[60 + 7 * (row % 9) for row in range(40)])
    for step in ("verifiers", "capture"):
        command = root / "harness" / step / "__main__.py"
        copy = f'shutil.copytree("made/{step}", sys.argv[sys.argv.index("--out") + 1], dirs_exist_ok=True)'
        command.write_text(f"import shutil, sys\n\n{copy}\nraise SystemExit\n{command.read_text()}")
    return with_recipe(root, {"prompt": "a", "answer": "b"})


CLOCKS = {"provenance", "seconds", "latency_s", "tokens_per_s", "peak_memory_bytes"}


def without_clocks(content):
    """JSON content without what a clock, a meter or the moment of the run says, at any depth."""
    if isinstance(content, dict):
        return {key: without_clocks(value) for key, value in content.items() if key not in CLOCKS}
    return [without_clocks(each) for each in content] if isinstance(content, list) else content


def read(path: Path):
    return without_clocks(read_jsonl(path) if path.suffix == ".jsonl" else json.loads(path.read_text()))


def assert_the_same_training(one: Path, other: Path) -> None:
    """Captured states, draft and state of the training to the bit; a shard also says how long it took."""
    drafts = list(one.glob("drafts/*/*"))
    tensors = [*one.glob("capture/*.safetensors"), *one.glob("training/*/state.safetensors")]
    assert len(drafts) >= 2 and len(tensors) >= 2
    for path in drafts:
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name
    for path in tensors:
        first, second = load_file(path), load_file(other / path.relative_to(one))
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    for path in one.glob("training/*/*.json*"):
        assert read(path) == read(other / path.relative_to(one)), path.relative_to(one)


def assert_the_same_results(one: Path, other: Path) -> None:
    """Prompts, captured states, training and draft to the bit; replies and verdicts to the token."""
    assert_the_same_training(one, other)
    for path in one.glob("prompts/*.jsonl"):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name
    alike = ["lint/*", "match/*", "lossless/*", "parity/*", "measured/*/replies.jsonl",
             "measured/*/samples.jsonl", "measured/*/acceptance.json"]  # fmt: skip
    compared = [path for pattern in alike for path in one.glob(pattern)]
    assert len(compared) >= 9
    for path in compared:
        assert read(path) == read(other / path.relative_to(one)), path.relative_to(one)


@pytest.mark.endurance
def test_twenty_kills_around_a_training_leave_it_bit_equal(tmp_path: Path):
    straight, killed = make_half_real(tmp_path / "straight"), make_half_real(tmp_path / "killed")
    run_with_kills(straight, "reproduce_killed", [], 0, random.Random(0))
    # Half of the kills hit the training, which is where there is most to lose.
    jobs = jobs_of(straight, "killed")
    training = next(job for job in jobs if "/train/" in job.log)
    told = run_with_kills(
        killed, "reproduce_killed", sorted([*jobs, *[training] * len(jobs)], key=jobs.index), KILLS, random.Random(9)
    )
    print(f"killed {told.moments}")
    assert len(told.moments) == KILLS
    assert (told.remade, told.survivors, leftovers(killed)) == ([], [], [])
    assert_the_same_training(*(root / "results/killed" for root in (straight, killed)))


@pytest.mark.endurance
def test_twenty_kills_of_a_real_run_change_no_result_and_repeat_nothing(tmp_path: Path):
    straight = make_real(tmp_path / "straight")
    undisturbed = run_with_kills(straight, "reproduce_killed", [], 0, random.Random(0))
    jobs = jobs_of(straight, "killed")
    killed = make_real(tmp_path / "killed")
    told = run_with_kills(killed, "reproduce_killed", jobs, KILLS, random.Random(8))
    print(f"jobs {[(job.log, job.seconds) for job in jobs]}\nkilled {told.moments}")
    assert len(told.moments) == KILLS and len({log for log, _ in told.moments}) >= 8
    assert (undisturbed.remade, told.remade, told.survivors) == ([], [], [])
    assert leftovers(killed) == [] and not started(straight)
    assert_the_same_results(*(root / "results/killed" for root in (straight, killed)))


@pytest.mark.slow
def test_a_run_killed_at_random_moments_makes_every_file_once_and_leaves_nothing_half_done(
    finished_toy: Toy, tmp_path: Path
):
    jobs = jobs_of(finished_toy.root, TARGET.removeprefix("reproduce_"))
    toy = make_toy(tmp_path)
    told = run_with_kills(toy.root, TARGET, jobs, 2, random.Random(4))
    assert (told.remade, told.survivors, leftovers(toy.root)) == ([], [], [])
    made = {name for name in finished_toy.files() if name.startswith(("results/", "models/"))}
    assert made == {name for name in toy.files() if name.startswith(("results/", "models/"))}
    assert toy.jobs() == set()
