"""Settings: what is right loads at both scales; what is wrong is named with its value and its fix."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config import load_all, load_reproduction, parse_settings
from harness.errors import UserError
from harness.recipes import read_recipe, reproduction_names, scales_of
from harness.sections.training import Capture
from harness.yamlfile import read_yaml

GOOD = read_yaml(Path(__file__).parents[1] / "toy_reproduction.yaml")


def _load(folder: Path, content: dict[str, Any] | str, scale: str = "full") -> str:
    """The error text that loading `content` gives."""
    path = folder / "mine" / "reproduction.yaml"
    path.parent.mkdir()
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(UserError) as caught:
        load_reproduction("mine", scale, folder)
    text = str(caught.value)
    assert all(line.startswith(str(path)) and ". Fix: " in line for line in text.splitlines()), text
    return text.replace(str(path), "FILE")


def _changed(place: str, value: Any) -> dict[str, Any]:
    """The good settings with one key set, or taken out where `value` is `...`."""
    content = copy.deepcopy(GOOD)
    *around, key = place.split(".")
    section: Any = content
    for name in around:
        section = section[int(name)] if name.isdigit() else section[name]
    if value is ...:
        del section[key]
    else:
        section[int(key) if key.isdigit() else key] = value
    return content


@pytest.mark.parametrize("name", reproduction_names())
def test_every_reproduction_loads_at_every_scale_that_it_has(name: str):
    full = load_reproduction(name)
    assert full.target == name == full.model
    assert full.variants[0] == "none" and set(full.algorithms) <= set(full.variants)
    for scale in scales_of(read_recipe(name))[1:]:
        small = load_reproduction(name, scale)
        assert small.target == f"{name}_{scale}"
        assert sum(each.rows for each in small.data.train) < sum(each.rows for each in full.data.train)
        assert (small.verifier == full.verifier) == (small.model == full.model) == (scale == "smoke")


def test_all_reproductions_are_listed_by_target():
    scales = {name: scales_of(read_recipe(name)) for name in reproduction_names()}
    wanted = {f"{name}_{scale}".removesuffix("_full") for name, each in scales.items() for scale in each}
    assert set(load_all()) == wanted
    assert {"smollm2_135m", "smollm2_135m_smoke"} <= wanted


PLAN = {
    "machine": "h100", "prompt_tokens": 9, "reply_tokens": 9,
    "verifier": {
        "layers": 20, "hidden_size": 64, "intermediate_size": 128, "attention_heads": 9, "kv_heads": 3, "head_dim": 64,
        "vocab_size": 4000, "parameters": 1e6, "weight_bytes": 2e6,
    },
}  # fmt: skip

MINIATURE = {"source": "miniature", "id": "specproof/llama", "family": "llama"}

FAULTS = [
    ("training.learning_rat", 1.0, "training.learning_rat: no such key. Fix: learning_rate"),
    ("training.zzz", 1, "training.zzz: no such key. Fix: use one of checkpoint_minutes, clip_norm,"),
    ("training.epochs", "3", "training.epochs = '3': Input should be a valid integer. Fix: use 1 or more passes"),
    ("training.epochs", True, "training.epochs = True: Input should be a valid integer"),
    ("training.epochs", ..., "training.epochs: missing. Fix: use 1 or more passes over the data"),
    ("training.learning_rate", math.nan, "training.learning_rate = nan: Input should be a finite number"),
    ("serve", ..., "serve: missing. Fix: give a section, with max_model_len, max_num_seqs"),
    ("data", 5, "data = 5: not a section. Fix: give a section, with seed, train, heldout, reply"),
    ("data.train.0.rows", 0, "data.train.0.rows = 0: Input should be greater than or equal to 1. Fix: use 1"),
    ("data.train.0.rows", 10**9, "Input should be less than or equal to 100000000. Fix: use 1 to 100,000,000 rows"),
    ("data.train.1.source", "word_problem", "data.train.1.source = 'word_problem': no such kind. Fix: use one of 'w"),
    ("data.train.1", {"source": "chat", "name": "x", "id": "a/b", "revision": "main", "rows": 1},
     "data.train.1.revision = 'main': String should match pattern '^[0-9a-f]{40}$'. Fix: give the 40 hex digits"),
    ("data.train.1", {"source": "gsm8k", "rows": 1, "split": "x"}, "data.train.1.split: no such key. Fix: use one of"),
    ("verifier.source", "weel", "verifier.source = 'weel': no such kind. Fix: use one of 'wheel', 'folder', 'hub'"),
    ("verifier.source", ..., "verifier.source: missing. Fix: say which kind it is"),
    ("verifier.versio", "1", "verifier.versio: no such key. Fix: version"),
    ("verifier.package", ..., "verifier.package: missing. Fix: name the Python package that carries the weights"),
    ("verifier.version", 0.1, "verifier.version = 0.1: Input should be a valid string. Fix: give the exact version"),
    ("capture.aux_layers", [3, 2], "capture: aux_layers = [3, 2]: layer ids must be ascending"),
    ("capture.mode", "on", "capture.mode = 'on': Input should be 'offline', 'online' or 'hybrid'. Fix: use offline"),
    ("capture.store_dtype", "int4", "capture.store_dtype = 'int4': Input should be 'int8'. Fix: use int8 for half"),
    ("capture", {"mode": "online", "store_dtype": "int8", "aux_layers": [1], "shard_rows": 1, "max_num_seqs": 1},
     "capture: mode = online keeps no states, so store_dtype = int8 has no effect. Fix: leave it out"),
    ("capture.jobs", 0, "capture.jobs = 0: Input should be greater than or equal to 1. Fix: cut the capture"),
    ("baselines.ngram.lookup_min", 9, "baselines.ngram: lookup_min = 9 is above lookup_max = 4"),
    ("algorithms", {}, "algorithms = {}: Dictionary should have at least 1 item"),
    ("algorithms.eagel3", {}, "algorithms: no algorithm called 'eagel3'. Fix: eagle3"),
    ("algorithms.eagle3.draft_vocab", 1, "algorithms.eagle3: draft_vocab: no such key. Fix: draft_vocab_size"),
    ("algorithms.eagle3.speculative_tokens", 99, "speculative_tokens = 99: Input should be less than or equal to 32"),
    ("gates.speedup_c1_min", {"eagle": 1.0}, "gates.speedup_c1_min: no variant called 'eagle'. Fix: use none or ngram"),
    ("gates.speedup_c1_min", {"eagle3": -1.0}, "gates.speedup_c1_min.eagle3 = -1.0: Input should be greater than 0"),
    ("gates.acceptance_length_min", {"eagle3": {"mt_bench": 2.0}}, "'mt_bench' is not among data.heldout"),
    ("evaluate.latency.benchmark", "gsm8k", "evaluate.latency.benchmark: 'gsm8k' is not among data.heldout"),
    ("evaluate.latency.requests", 10**6, "evaluate.latency.requests = 1000000: data.heldout has "),
    ("evaluate.latency.concurrency", [8], "evaluate.latency.concurrency = [8] has no 1. Fix: add it there"),
    ("gates.accuracy_min", {"gsm8k": 0.5}, "gates.accuracy_min: 'gsm8k' is not among evaluate.accuracy.tasks. Fix:"),
    ("gates.accuracy_min", {"gsm8": 0.5}, "gates.accuracy_min.gsm8 = 'gsm8': Input should be 'word_problems',"),
    ("gates.accuracy_min", {"word_problems": 72}, "gates.accuracy_min.word_problems = 72: Input should be less than"),
    ("evaluate.output_match", {"sources": ["repeat_word"], "first_tokens": 10},
     "evaluate.output_match.sources: 'repeat_word' is not among data.heldout"),
    ("evaluate.output_match", {"sources": ["word_problems"], "first_tokens": 500},
     "evaluate.output_match.first_tokens = 500: replies have at most evaluate.acceptance.max_new_tokens = 96. Fix:"),
    ("serve.max_model_len", 64, "evaluate.acceptance.max_new_tokens = 96: no room in serve.max_model_len = 64"),
    ("quantised", {"scheme": "int8", "algorithms": ["x"]}, "quantised.algorithms: 'x' is not among algorithms. Fix:"),
    ("quantised", {"scheme": "int4"}, "quantised.scheme = 'int4': Input should be 'int8' or 'fp8'. Fix: use int8"),
    ("evaluate.speed", {"draft_tokens": {"eagle3": [1]}, "requests": 4, "concurrency": [2]},
     "evaluate.speed.concurrency: 2 is not among evaluate.latency.concurrency. Fix: add it there"),
    ("evaluate.speed", {"draft_tokens": {"eagle3": [1]}, "requests": 99, "concurrency": [1]},
     "evaluate.speed.requests = 99: is above evaluate.latency.requests = 20, which evaluate.speed compares"),
    ("evaluate.latency.concurrency", [1, 4, 4], "evaluate.latency.concurrency: 4 is listed twice. Fix: list it once"),
    ("evaluate.latency.rates", [0.5, 0.5], "evaluate.latency.rates: 0.5 is listed twice. Fix: list it once"),
    ("evaluate.accuracy.tasks", ["word_problems", "word_problems"],
     "evaluate.accuracy.tasks: word_problems is listed twice. Fix: list it once"),
    ("evaluate.speed", {"draft_tokens": {"eagle3": [1, 1]}, "requests": 4, "concurrency": [1]},
     "evaluate.speed.draft_tokens.eagle3: 1 is listed twice. Fix: list it once"),
    ("quantised", {"scheme": "int8", "algorithms": ["eagle3", "eagle3"]}, "quantised.algorithms: eagle3 is listed twi"),
    ("quantised", {"scheme": "fp8"}, "quantised.scheme = fp8: needs.gpus = 0, and it is served on a GPU only. Fix: u"),
    ("evaluate.speed", {"draft_tokens": {"eagle3": [0]}, "requests": 4, "concurrency": [1]},
     "evaluate.speed.draft_tokens.eagle3.0 = 0: Input should be greater than or equal to 1. Fix: "),
    ("evaluate.speed", {"draft_tokens": {"eagel3": [1]}, "requests": 4, "concurrency": [1]},
     "evaluate.speed.draft_tokens: 'eagel3' is not among algorithms. Fix: use eagle3"),
    ("evaluate.sampling", {"max_new_tokens": 9999}, "evaluate.sampling.max_new_tokens = 9999: no room in serve"),
    ("evaluate.bootstrap_resamples", 10**9, "evaluate.bootstrap_resamples = 1000000000: Input should be less than or"),
    ("training.seed", 2**64, "training.seed = 18446744073709551616: Input should be less than 4294967296. Fix: use a"),
    ("verifier", MINIATURE | {"training_tokens": 0}, "verifier.training_tokens = 0: Input should be greater than or"),
    ("verifier", MINIATURE | {"training_tokens": 1e6}, "verifier.training_tokens = 1000000.0: Input should be a valid"),
    ("verifier", MINIATURE | {"family": "gemma"}, "verifier.family = 'gemma': Input should be 'llama', 'qwen3'"),
    ("verifier", MINIATURE | {"tokens_per_step": 1}, "verifier.tokens_per_step = 1: Input should be greater than or"),
    ("serve.tensor_parallel_size", 2, "serve.tensor_parallel_size = 2: needs.gpus = 0. Fix: ask for 2 GPUs, or lower"),
    ("training.processes", 64, "training.processes = 64: needs.cores = 2. Fix: use 2 at most"),
    ("training.compile", True, "training.compile = True: needs.gpus = 0, and it pays on a GPU only. Fix: leave it out"),
    ("plan", PLAN, "capture.aux_layers = [2, 15, 27]: plan.verifier.layers = 20. Fix: use ids below 20"),
    ("plan", PLAN, "algorithms.eagle3.draft_vocab_size = 4096: plan.verifier.vocab_size = 4000. Fix: use a smaller"),
    ("plan", PLAN | {"machine": "h1000"}, "plan: machine = 'h1000': not known. Fix: use one of cpu, a100,"),
    ("plan", PLAN | {"verifier": PLAN["verifier"] | {"active_parameters": 1e9}}, "active_parameters = 10"),
    ("verifier.template", {"1x": True}, "verifier.template.1x"),
    ("name", "other", "name: is not set in the file. Fix: leave it out"),
    ("data.seed", "x" * 500, "data.seed = '" + "x" * 79 + "...: Input should be"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "said"), FAULTS, ids=[f"{row[0]}={str(row[1])[:12]}" for row in FAULTS])
def test_a_bad_setting_is_named_with_its_value_and_its_fix(tmp_path: Path, place: str, value: Any, said: str):
    assert said in _load(tmp_path, _changed(place, value))


def test_an_engine_beside_the_training_needs_a_gpu_of_its_own(tmp_path: Path):
    content = _changed("capture.mode", "online")
    content["needs"] |= {"gpus": 1, "gpu_memory_gb": 80}
    said = _load(tmp_path, content)
    assert "capture.mode = online: the engine takes 1 GPUs beside the training's, but needs.gpus = 1. Fix: ask" in said


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path):
    content = _changed("training.epochs", 0)
    content["data"]["seed"] = -1
    assert len(_load(tmp_path, content).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "FILE:3: key 'a' is given twice"),
        ("a:\n  x: 1\n  x: 2\n", "FILE:3: key 'x' is given twice"),
        ("a: [1\nb: 2", "FILE:2: expected ',' or ']'"),
        ("[a, b]: 1", "FILE:1: a key must be a plain name"),
        ("a: !!python/object/apply:os.getcwd []", "FILE:1: could not determine a constructor for the tag"),
        ("a: \x01", "FILE: unacceptable character"),
        ("", "FILE: holds no settings"),
        ("- a", "FILE: holds no settings"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_with_its_line(tmp_path: Path, text: str, said: str):
    assert said in _load(tmp_path, text)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(UserError, match="not UTF-8 text at byte 3"):
        read_yaml(path)


def test_a_number_with_an_exponent_is_a_number(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1e-3\nb: 2.5E+1\nc: .5e1\nd: e3\ne: 1e\nf: 12\n")
    assert read_yaml(path) == {"a": 0.001, "b": 25.0, "c": 5.0, "d": "e3", "e": "1e", "f": 12}


def test_an_unknown_reproduction_lists_those_there_are():
    with pytest.raises(UserError, match=r"no such file. Fix: use one of: .*smollm2_135m"):
        load_reproduction("smolm")


def test_the_smoke_section_is_needed_for_smoke_and_may_not_change_the_verifier(tmp_path: Path):
    assert "FILE: smoke: missing" in _load(tmp_path, _changed("smoke", ...), "smoke")
    (tmp_path / "mine" / "reproduction.yaml").unlink()
    (tmp_path / "mine").rmdir()
    assert "smoke.verifier: both scales share" in _load(
        tmp_path, _changed("smoke.verifier", {"source": "hub"}), "smoke"
    )


def test_a_fault_that_only_smoke_has_says_so(tmp_path: Path):
    said = _load(tmp_path, _changed("smoke.trainin", {"epochs": 1}), "smoke")
    assert said == "FILE with its smoke section: trainin: no such key. Fix: training"


def test_two_reproductions_with_the_same_target_are_refused(tmp_path: Path):
    for name in ("mine", "mine_smoke"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "reproduction.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(UserError, match="target mine_smoke is taken"):
        load_all(tmp_path)


def test_a_small_target_that_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "reproduction.yaml").write_text(yaml.safe_dump(_changed("needs.instead", "other")))
    with pytest.raises(UserError, match=r"needs.instead = 'other': no such reproduction. Fix: use one of: mine"):
        load_all(tmp_path)


def test_images_are_not_for_a_miniature_that_reads_text(tmp_path: Path):
    content = _changed("verifier", MINIATURE)
    content["data"]["train"] = [{"source": "image_questions", "rows": 5}]
    said = _load(tmp_path, content)
    assert said == "FILE: data.train: image_questions: verifier.family = llama reads text. Fix: use qwen3_vl_moe"


def test_a_folder_without_reproductions_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="holds no reproduction"):
        load_all(tmp_path)


def test_settings_given_as_json_are_checked_like_those_of_a_file():
    text = '{"aux_layers": [1, 2], "shard_rows": 8, "max_num_seqs": 4}'
    assert parse_settings(text, Capture).aux_layers == [1, 2]
    with pytest.raises(UserError, match=r"--settings: shard_row: no such key. Fix: shard_rows"):
        parse_settings(text.replace("shard_rows", "shard_row"), Capture)
    with pytest.raises(UserError, match=r"--settings: not JSON"):
        parse_settings("{", Capture)
