"""The folder's page names every command and every rule, as the code has them."""

import re
from pathlib import Path

import algorithms
from harness.checkpoint.__main__ import parser
from harness.checkpoint.config_rules import CONFIG_RULES, STRUCTURE_RULES
from harness.checkpoint.tensor_rules import TENSOR_RULES
from harness.checkpoint.verifier_rules import VERIFIER_RULES

PAGE = Path(__file__).parents[3] / "harness" / "checkpoint" / "README.md"


def rule_table() -> str:
    """The rules, with the first line of what each says of itself."""
    rows = {rule.name: ("all", rule.check.__doc__, rule.symptom) for rule in (*STRUCTURE_RULES, *CONFIG_RULES)}
    special: dict[str, list[str]] = {}
    # One that writes the checkpoints of another has the other's rules.
    formats: dict[int, str] = {}
    for name in algorithms.NAMES:
        formats.setdefault(id(algorithms.load(name).format), name)
    for name in formats.values():
        for rule in algorithms.load(name).format.rules:
            special.setdefault(rule.name, []).append(name)
            rows.setdefault(rule.name, ("", rule.check.__doc__, "the server stops, or drafts are useless"))
    rows |= {rule.name: ("all", rule.check.__doc__, rule.symptom) for rule in TENSOR_RULES}
    rows |= {rule.name: ("with --verifier", rule.check.__doc__, rule.symptom) for rule in VERIFIER_RULES}
    lines = ["| rule | of | what it knows | what a fault costs |", "| --- | --- | --- | --- |"]
    for name, (kind, said, symptom) in rows.items():
        assert said, f"{name} does not say what it knows"
        of = ", ".join(special[name]) if name in special else kind
        lines.append(f"| `{name}` | {of} | {said.splitlines()[0].rstrip('.')} | {symptom} |")
    return "\n".join(lines)


def test_the_table_of_rules_is_the_codes():
    table = rule_table()
    assert table in PAGE.read_text(), f"put this table into {PAGE.name}:\n{table}"


def test_every_command_on_the_page_parses_and_every_command_is_on_the_page():
    lines = re.findall(r"^    python -m harness\.checkpoint (.+)$", PAGE.read_text(), re.MULTILINE)
    commands = set()
    for line in lines:
        commands.add(parser().parse_args(line.split()).command)
    actions = next(action for action in parser()._actions if action.dest == "command")
    assert commands == set(actions.choices)
