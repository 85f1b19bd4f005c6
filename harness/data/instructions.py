"""Instructions over topics, made here: explain, describe, list, compare, letters, stories. No gold answers, no network.

Called by `sources.py`. A form and its topic decide the split (`is_heldout`), so no held-out prompt asks for a form
about a topic that was trained on in that form, whatever the seed.
"""

import hashlib
import random
from collections.abc import Iterator
from itertools import zip_longest

HELDOUT_SHARE = 0.2
Instruction = tuple[str, list[dict[str, str]], None]
TOPICS = (
    "the sun", "volcanoes", "bread", "rain", "bees", "trees", "rivers", "mountains", "the moon", "coffee", "tea",
    "bicycles", "trains", "airplanes", "ships", "bridges", "castles", "libraries", "schools", "hospitals",
    "gardens", "farms", "forests", "deserts", "oceans", "islands", "snow", "wind", "clouds", "rainbows", "dogs",
    "cats", "horses", "elephants", "whales", "penguins", "owls", "butterflies", "frogs", "ants", "music",
    "painting", "dancing", "cooking", "reading", "writing", "chess", "football", "swimming", "running",
    "photography", "computers", "robots", "the internet", "electricity", "batteries", "magnets", "gravity", "atoms",
    "stars", "planets", "telescopes", "maps", "clocks", "money", "markets", "democracy", "friendship", "sleep",
    "exercise", "vegetables", "fruit", "cheese", "chocolate", "glass", "paper", "wood", "metal", "plastic",
    "recycling",
)  # fmt: skip
PEOPLE = (
    "a child", "a student", "a friend", "a teacher", "a new colleague", "a grandparent", "a traveller",
    "a beginner",
)  # fmt: skip
FORMS = {
    "explain": "Explain {topic} to {person} in one paragraph.",
    "describe": "Describe {topic} to {person} in three sentences.",
    "importance": "Why are people interested in {topic}? Answer for {person}.",
    "facts": "List five interesting facts about {topic} for {person}.",
    "tips": "Give {person} three tips about {topic}.",
    "questions": "Write five questions about {topic} that {person} could ask.",
    "poem": "Write a short poem about {topic} for {person}.",
    "story": "Write a short story about {topic} for {person}.",
    "email": "Write a friendly email to {person} about {topic}.",
    "plan": "Plan a one-hour lesson about {topic} for {person}.",
    "speech": "Write a short speech about {topic} for {person}.",
    "compare": "Compare {topic} and {other} in one paragraph.",
    "choose": "Which is more useful in daily life, {topic} or {other}? Give three reasons.",
}


def is_heldout(form: str, topic: str) -> bool:
    """Which split a form about a topic belongs to: a fixed hash of both, the same for every seed."""
    return hashlib.sha256(f"{form}:{topic}".encode()).digest()[0] < 256 * HELDOUT_SHARE


def _prompts(form: str, text: str, heldout: bool, shuffle: random.Random) -> Iterator[Instruction]:
    topics = [topic for topic in TOPICS if is_heldout(form, topic) == heldout]
    partners = TOPICS if "{other}" in text else PEOPLE
    pairs = [(topic, partner) for topic in topics for partner in partners if topic != partner]
    shuffle.shuffle(pairs)
    for topic, partner in pairs:
        content = text.format(topic=topic, person=partner, other=partner)
        yield form, [{"role": "user", "content": content}], None


def instructions(heldout: bool, seed: int) -> Iterator[Instruction]:
    """All instructions of a split as (category, messages, None), one of each form in turn until all are used up."""
    streams = [_prompts(form, text, heldout, random.Random(f"{seed}:{heldout}:{form}")) for form, text in FORMS.items()]
    for turn in zip_longest(*streams):
        yield from (prompt for prompt in turn if prompt is not None)
