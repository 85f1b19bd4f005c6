"""The text of a draft's model card. Made by `card` from the checkpoint, its record and the results of a run."""

import json
from dataclasses import dataclass
from typing import Any

import algorithms
from algorithms.exporting import speculative_tokens
from harness.checkpoint.diff import differing_keys
from harness.checkpoint.findings import Subject
from harness.checkpoint.hub import is_hub_id
from harness.checkpoint.release import Record
from harness.checkpoint.results import BASE, Results

# Metric of results.csv -> what it is, as the card says it.
SHOWN = {
    "acceptance_length": "tokens per verify step that drafted, bonus token included; pooled over steps",
    "emitted_tokens_per_step": "tokens in the replies per verify step; pooled over steps",
    "speedup_c1": "tokens/s against no speculation, one request at a time; in pairs by prompt",
    "tokens_per_s_c1": "reply tokens per second, one request at a time",
    "output_match_exact": "share of greedy replies with the very token ids of no speculation",
    "output_match_faults": "replies that differ where the verifier is not undecided",
    "accuracy_strict": "share of problems whose answer stands in the demanded form and is right",
    "accuracy_strict_difference": "the same problems, less no speculation",
    "parity_gap": "acceptance length that the reference loop predicts, less the served one",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card tells of.

    Attributes:
        name: title of the card.
        serve_as: what follows `vllm serve`: the repository, or the folder.
        licence: id of the verifier's licence as the hub writes it; None where it is not known.
    """

    name: str
    serve_as: str
    subject: Subject
    record: Record
    results: Results | None
    licence: str | None

    @property
    def verifier(self) -> str:
        """The verifier's name in config.json."""
        return self.subject.config["speculators_config"]["verifier"]["name_or_path"]

    @property
    def base_model(self) -> str | None:
        """Hub id of the verifier; None where it is not known."""
        named = self.results.provenance.get("verifier") if self.results else None
        return self.verifier if is_hub_id(self.verifier) else named

    @property
    def algorithm(self) -> str:
        """The draft's algorithm."""
        return self.subject.config["speculators_model_type"]


def _number(value: str) -> str:
    number = float(value)
    return f"{number:.0f}" if number == int(number) and abs(number) >= 10 else f"{number:.3g}"


def _figure(row: dict[str, str] | None) -> str:
    """Value with its 95% interval; without a value the reason."""
    if row is None:
        return "not run: the run has no such figure"
    if not row["value"]:
        return row["note"] or "not run"
    interval = f" ({_number(row['low'])} to {_number(row['high'])})" if row["low"] and row["high"] else ""
    return f"{_number(row['value'])}{interval}"


def header(facts: CardFacts) -> str:
    """The YAML block that the hub reads."""
    from huggingface_hub import ModelCardData

    results = facts.results
    sets = [source["id"] for source in results.sources if source.get("id")] if results else []
    data = ModelCardData(
        base_model=facts.base_model,
        datasets=sorted(set(sets)) or None,
        license=facts.licence,
        library_name="vllm",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "speculators", "draft-model", facts.algorithm],
    )
    return f"---\n{data.to_yaml()}\n---"


def serving(facts: CardFacts) -> str:
    """How to serve it."""
    config, tokens = facts.subject.config, speculative_tokens(facts.subject.config)
    by_hand: dict[str, Any] = {"model": facts.serve_as, "method": facts.subject.algorithm.engine_method}
    by_hand["num_speculative_tokens"] = tokens
    if "mask_token_id" in config:
        by_hand["parallel_drafting"] = True
    told = json.dumps(by_hand)
    runner = ""
    if algorithms.engine_runner(facts.algorithm) == "second":
        runner = "\n\nvLLM serves this kind of draft with its second model runner, which its CPU build lacks."
    return (
        f"    vllm serve {facts.serve_as}\n\n"
        "vLLM finds the verifier by itself and sends back the verifier's own greedy replies, only sooner. "
        f"Beside another verifier of the same sizes, such as a quantised copy:\n\n"
        f"    vllm serve VERIFIER --speculative-config '{told}'{runner}"
    )


def results_table(results: Results) -> str:
    """Figures of the draft beside no speculation."""
    nothing: dict[str, dict[str, str] | None] = {"": None}
    lines = ["| metric | benchmark | this draft | no speculation | n |", "| --- | --- | ---: | ---: | ---: |"]
    for metric in SHOWN:
        rows, base = results.rows_of(results.variant, metric), results.rows_of(BASE, metric)
        for benchmark, row in (rows or nothing).items():
            against = _figure(base[benchmark]) if benchmark in base else "–"
            lines.append(
                f"| `{metric}` | {benchmark or 'all'} | {_figure(row)} | {against} | {row['n'] if row else ''} |"
            )
    return "\n".join(lines)


def how_measured(facts: CardFacts) -> str:
    """The results, and everything that they are of."""
    if facts.results is None:
        return "Not run: the card was made without the results of a run."
    results, found = facts.results, facts.results.provenance
    machine, versions = found.get("hardware") or {}, found.get("versions") or {}
    where = ", ".join([f"{machine.get('cores')} cores of {machine.get('cpu')}", *machine.get("gpus", [])])
    commits = ", ".join(str(commit)[:12] for commit in found.get("commits") or [])
    small = "" if found.get("scale") == "full" else f" A {found.get('scale')} run: its figures mean little."
    verifier = results.capture.get("verifier") or {}
    dirty = " with uncommitted changes" if found.get("dirty") else ""
    told = [
        results_table(results),
        "In brackets: 95% intervals.",
        f"Run `{results.target}` on {where}; vLLM {versions.get('vllm')}; commit {commits}{dirty}; "
        f"{str(found.get('finished_at'))[:10]}. Verifier {verifier.get('id')}, its files' SHA-256 "
        f"{str(verifier.get('sha256'))[:12]}.{small}",
        "\n".join(f"- `{metric}`: {meaning}" for metric, meaning in SHOWN.items()),
    ]
    changed = differing_keys(results.config, facts.subject.config)
    if changed:
        since = "; ".join(f"{key}: {before!r}, now {after!r}" for key, (before, after) in changed.items())
        told.insert(2, f"Changed since it was measured: {since}.")
    return "\n\n".join(told)


def how_made(facts: CardFacts) -> str:
    """Training data and settings, or what it was converted from."""
    record, results = facts.record, facts.results
    if results is None:
        known = record.source or record.training
        return f"    {json.dumps(known, ensure_ascii=False)}" if known else "Not known: there is no provenance."
    sources = [
        f"- {source.get('id') or source['source']} ({source['split']}): {source['rows']} prompts"
        for source in results.sources
        if source.get("split") != "heldout" and source.get("rows")
    ]
    capture, training = results.capture, results.training
    settings = training.get("settings") or {}
    chosen = {**(settings.get("training") or {}), **(settings.get("algorithm") or {})}
    return "\n\n".join(
        [
            f"Trained on {capture.get('rows')} replies of the verifier itself "
            f"({capture.get('supervised_tokens')} tokens of replies) to these prompts:",
            "\n".join(sources) or "- not recorded",
            f"{training.get('trainable_parameters')} of {training.get('draft_parameters')} parameters were trained, in "
            f"{training.get('steps')} steps. Settings:",
            "\n".join(f"- `{key}`: {value}" for key, value in chosen.items() if value is not None),
        ]
    )


def limits(facts: CardFacts) -> str:
    """What the draft cannot."""
    subject = facts.subject
    layers = ", ".join(map(str, subject.algorithm.aux_layers(subject.config)))
    told = [
        f"- It reads the states of its verifier after layers {layers}: another model, a fine-tune too, accepts fewer "
        "of its drafts. What is sent back stays that model's own.",
        f"- It drafts {subject.draft_vocabulary} of the verifier's {subject.layer['vocab_size']} tokens.",
    ]
    if "sliding_attention" in (subject.layer.get("layer_types") or ()):
        told.append(f"- It sees the last {subject.layer['sliding_window']} tokens only.")
    return "\n".join(told)


def licence(facts: CardFacts) -> str:
    """Whose licence holds."""
    if facts.licence is None:
        return f"Not recorded here: see the page of {facts.base_model or facts.verifier}, whose licence holds."
    return f"`{facts.licence}`, the verifier's: the draft has rows of its embedding and head."


def card_text(facts: CardFacts) -> str:
    """The whole README.md."""
    tokens = speculative_tokens(facts.subject.config)
    sections = {
        "Serve it": serving(facts),
        "Results": how_measured(facts),
        "Training": how_made(facts),
        "Limits": limits(facts),
        "Licence": licence(facts),
    }
    opening = (
        f"A draft model ({facts.algorithm}, {tokens} tokens a step) for speculative decoding of "
        f"{facts.base_model or facts.verifier} with vLLM, in the speculators format."
    )
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"{header(facts)}\n\n# {facts.name}\n\n{opening}\n\n{body}\n"
