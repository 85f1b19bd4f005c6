"""Plans against what was measured here, what others state, and what the settings ask for."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import algorithms
from algorithms.work import Pack, Sizes
from harness import costs
from harness.config import Reproduction, load_all, load_reproduction, validate
from harness.errors import UserError
from harness.machines import KNOWN
from harness.plan import WIDTH, amount, main, show, size_text, time_text
from harness.planning import BENCHMARK_PROMPT_TOKENS, Planned, plan_of, planned_disk_mb, planned_minutes
from harness.recipes import REPRODUCTIONS, at_scale, merge, read_recipe
from reports.collect import read_published

MEASURED = json.loads((Path(__file__).parent / "main_job_seconds.json").read_text())
WITHIN = 0.3


def _measured_run() -> Reproduction:
    """The main job as it was when its seconds were measured, whatever it asks for today: nothing was sampled then."""
    today = at_scale(read_recipe("smollm2_135m"), "full", Path("smollm2_135m"))
    then = merge(today, MEASURED["recipe"]) | {"name": "smollm2_135m", "gates": {}}
    return validate(Reproduction, then, "main_job_seconds.json")


@pytest.fixture(scope="module")
def main_job() -> Planned:
    return plan_of(_measured_run())


def test_the_main_job_has_the_rows_and_tokens_that_were_measured(main_job: Planned):
    assert sum(source.rows for source in _measured_run().data.train) == MEASURED["rows"]
    assert main_job.step("capture").tokens == pytest.approx(MEASURED["tokens"], rel=0.02)
    assert main_job.step("capture").disk_bytes == pytest.approx(MEASURED["stored_bytes"], rel=0.02)


def test_the_capture_takes_what_it_took_here(main_job: Planned):
    assert main_job.step("capture").hours * 3600 == pytest.approx(MEASURED["capture_s"], rel=WITHIN)


@pytest.mark.parametrize("name", MEASURED["train_s"])
def test_every_training_takes_what_it_took_here(main_job: Planned, name: str):
    """The machine's constants come from one of them; the others are predicted."""
    assert main_job.step("train", name).hours * 3600 == pytest.approx(MEASURED["train_s"][name], rel=WITHIN)


@pytest.mark.parametrize("name", MEASURED["peak_memory_bytes"])
def test_every_training_holds_what_it_held_here(main_job: Planned, name: str):
    planned = main_job.step("train", name).memory_bytes
    assert planned == pytest.approx(MEASURED["peak_memory_bytes"][name], rel=WITHIN)


@pytest.mark.parametrize("variant", sorted(MEASURED["measure_s"]))
def test_every_measurement_takes_what_it_took_here(main_job: Planned, variant: str):
    assert main_job.step("measure", variant).hours * 3600 == pytest.approx(MEASURED["measure_s"][variant], rel=WITHIN)


@pytest.mark.parametrize("name", MEASURED["trainable_parameters"])
def test_the_parameters_are_those_that_were_trained_here(name: str):
    run = load_reproduction("smollm2_135m")
    sizes = Sizes(576, 1536, 576, 192, 49152, 3)
    work = algorithms.config_class(name)(**run.algorithms[name]).work(sizes, Pack(2048, 700, 140))
    assert work.parameters == pytest.approx(MEASURED["trainable_parameters"][name], rel=0.005)


# Prompts and replies of a chat set with all turns, cut at 8,192 tokens: not stated by the examples, so that hours are
# compared within a factor.
EXAMPLE_TOKENS, FACTOR = 1300.0, 3.0


def _stated(name: str, draft: str) -> dict:
    figures = read_published(REPRODUCTIONS / name / "published.yaml")
    return next(
        {"gpu_hours": figure.value, **figure.conditions}
        for figure in figures
        if figure.metric == "training_gpu_hours" and figure.conditions["draft"].startswith(draft)
    )


EXAMPLES = [
    ("llama3_8b", "speculators 5k example (offline)", "eagle3", {"ttt_steps": 3, "draft_vocab_size": 32000}, 1),
    ("qwen3_8b", "speculators 5k example (online)", "eagle3", {"ttt_steps": 3, "draft_vocab_size": 32000}, 2),
    ("qwen3_8b", "speculators 5k example", "dflash",
     {"speculative_tokens": 7, "mask_token_id": 1, "layers": 5, "max_anchors": 3072, "draft_vocab_size": 32000}, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "draft", "kind", "knobs", "devices"), EXAMPLES, ids=[f"{e[0]} {e[2]}" for e in EXAMPLES]
)
def test_training_hours_are_within_a_factor_of_what_others_state(
    name: str, draft: str, kind: str, knobs: dict, devices: int
):
    """5,000 samples, 5 epochs, H100: 327 s to 1,374 s of training; the example's options, our steps of 8,192 tokens."""
    stated, plan = _stated(name, draft), load_reproduction(name).plan
    assert plan is not None and stated["samples"] == 5000
    size = plan.verifier
    sizes = Sizes(size.hidden_size, size.intermediate_size, 4096, 1024, size.vocab_size, 3)
    config = algorithms.config_class(kind)(**{"speculative_tokens": 3} | knobs)
    work = config.work(sizes, Pack(8192, 5000, EXAMPLE_TOKENS))
    steps = stated["samples"] * stated["epochs"] * EXAMPLE_TOKENS / 8192
    seconds = steps * costs.training_step_s(work, KNOWN["h100"], devices, muon=False)
    assert stated["train_s"] / FACTOR < seconds < stated["train_s"] * FACTOR


def test_the_whole_of_a_published_run_is_within_a_factor():
    """92 H100 hours for 330,000 conversations, ten epochs: 15 h on four GPUs to write states, 8 h to train."""
    stated = _stated("qwen3_8b", "speculators v0.4.0 ShareGPT+UltraChat")
    size = load_reproduction("qwen3_8b").plan.verifier
    tokens = 330_000 * EXAMPLE_TOKENS
    stored = costs.store_bytes(tokens, 4, size.hidden_size)
    writing_h = costs.write_s(KNOWN["h100"], stored) / 3600
    assert stated["data_generation_h"] / FACTOR < writing_h < stated["data_generation_h"] * FACTOR
    config = algorithms.config_class("eagle3")(speculative_tokens=3, ttt_steps=3, draft_vocab_size=32000)
    work = config.work(Sizes(4096, 12288, 4096, 1024, 151936, 3), Pack(8192, 5000, EXAMPLE_TOKENS))
    hours = 10 * tokens / 8192 * costs.training_step_s(work, KNOWN["h100"], 4, muon=False) / 3600
    assert stated["training_h"] / FACTOR < hours < stated["training_h"] * FACTOR


def _changed(run: Reproduction, section: str, **values: object) -> Reproduction:
    return run.model_copy(update={section: getattr(run, section).model_copy(update=values)})


def test_more_of_something_costs_more_of_it_and_nothing_of_the_rest():
    run = load_reproduction("llama3_8b")
    before, epochs = plan_of(run), plan_of(_changed(run, "training", epochs=2 * run.training.epochs))
    layers = plan_of(_changed(run, "capture", aux_layers=[2, 9, 16, 23, 29]))
    for name in run.algorithms:
        start = KNOWN["h100"].start_s / 3600
        once = before.step("train", name).hours - start
        assert epochs.step("train", name).hours - start == pytest.approx(2 * once)
    assert epochs.step("capture") == before.step("capture")
    assert layers.step("capture").disk_bytes == pytest.approx(1.5 * before.step("capture").disk_bytes, rel=1e-3)
    assert layers.step("measure", "none") == before.step("measure", "none")
    sampling = run.evaluate.sampling.model_copy(update={"samples": 2 * run.evaluate.sampling.samples})
    sampled = plan_of(_changed(run, "evaluate", sampling=sampling)).step("measure", "none")
    more = sampled.tokens - before.step("measure", "none").tokens
    replies = run.evaluate.sampling.prompts * run.evaluate.sampling.samples
    assert more == replies * (BENCHMARK_PROMPT_TOKENS + run.evaluate.sampling.max_new_tokens)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_8b", "qwen3_235b_a22b"])
def test_the_modes_trade_disk_for_the_verifiers_time(name: str):
    modes = {mode.name: mode for mode in plan_of(load_reproduction(name)).modes}
    assert list(modes) == ["offline", "online", "hybrid"]
    assert modes["online"].disk_bytes < modes["offline"].disk_bytes / 1000
    assert modes["online"].verifier_device_hours > 0
    assert modes["hybrid"].disk_bytes == modes["offline"].disk_bytes
    assert modes["online"].verifier_device_hours > modes["hybrid"].verifier_device_hours
    assert modes["hybrid"].wall_hours <= 1.05 * modes["offline"].wall_hours, "the engine starts again"
    assert modes["online"].devices == modes["hybrid"].devices > modes["offline"].devices


def test_the_limits_of_a_job_follow_from_the_plan_and_have_a_floor():
    run = load_reproduction("llama3_70b")
    hours = plan_of(run).step("capture").hours
    assert planned_minutes(run, "capture", 240) == pytest.approx(2 * 60 * hours, abs=1)
    assert planned_minutes(run, "measure", 240, "none") == 240
    assert planned_disk_mb(run, "capture", 7) > 1e6
    unplanned = run.model_copy(update={"plan": None})
    assert (planned_minutes(unplanned, "capture", 240), planned_disk_mb(unplanned, "capture", 7)) == (240, 7)
    with pytest.raises(UserError, match=r"llama3_70b/reproduction\.yaml: plan: missing at scale full\. Fix: add"):
        plan_of(unplanned)


PLANNED = [run for run in load_all().values() if run.plan is not None]


@pytest.mark.parametrize("run", PLANNED, ids=lambda run: run.target)
def test_every_step_of_every_plan_is_shown(run: Reproduction):
    console = Console(width=WIDTH, file=StringIO())
    show(run, console)
    told = console.file.getvalue()
    assert max(map(len, told.splitlines())) <= WIDTH
    for word in ("verifier", "capture", *run.variants, "offline", "online", "hybrid", run.plan.machine):
        assert word in told


def test_a_step_that_a_device_cannot_hold_is_said():
    console = Console(width=WIDTH, file=StringIO())
    show(_changed(load_reproduction("llama3_8b"), "training", tokens_per_step=400_000), console)
    assert "more than a h100 has. Lower" in console.file.getvalue()
    assert "train eagle3: " in console.file.getvalue()


def test_the_command_shows_the_scale_that_is_asked_for(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["plan", "smollm2_135m", "--scale", "smoke"])
    main()
    assert "smollm2_135m_smoke" in capsys.readouterr().out


def test_amounts_are_written_for_people():
    assert [amount(n) for n in (0, 999, 1500, 214e6, 7e12)] == ["0", "999", "1.5 k", "214.0 M", "7.0 T"]
    assert [size_text(n) for n in (0, 12, 7.04e12)] == ["–", "12 B", "7.0 TB"]
    assert [time_text(h) for h in (0.05, 3.41, 120)] == ["3.0 min", "3.4 h", "5.0 d"]


def test_a_plan_that_takes_more_disk_than_the_recipe_asks_for_is_said():
    run = load_reproduction("llama3_8b")
    for disk_gb, said in ((100.0, True), (run.needs.disk_gb, False)):
        console = Console(width=WIDTH, file=StringIO())
        show(_changed(run, "needs", disk_gb=disk_gb), console)
        assert ("more than the 100 GB that the recipe asks for" in console.file.getvalue()) == said


# Seconds that the training of each took alone on 2 cores, 2026-11-30.
MINIATURES = {
    "gpt_oss_20b_mini": 107, "llama3_8b_mini": 69, "mistral_large_3_mini": 64, "qwen3_30b_a3b_mini": 93,
    "qwen3_8b_mini": 86, "qwen3_vl_235b_a22b_mini": 116,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, run in load_all().items() if run.scale == "mini"])
def test_a_miniature_is_planned_to_take_the_minutes_that_it_took(name: str):
    planned = plan_of(load_all()[name])
    assert planned.step("verifier").hours * 3600 == pytest.approx(MINIATURES[name], rel=0.3)
    assert planned.device_hours * 60 < 12
