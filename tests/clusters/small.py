"""The toy reproduction of tests/dag for clusters: two drafts, each trained on a GPU; the other recipes are left out."""

import shutil
from pathlib import Path
from typing import Any

from tests.dag.conftest import Toy, make_toy

REPRODUCTION = "reproductions/toy/reproduction.yaml"
MANIFEST = "results/toy_smoke/capture/manifest.json"


def two_drafts(folder: Path) -> Toy:
    """A toy repository in `folder` whose Snakefile is read quickly: every job of a cluster reads it twice."""
    toy = make_toy(folder)
    for recipe in (toy.root / "reproductions").iterdir():
        if recipe.is_dir() and recipe.name != "toy":
            shutil.rmtree(recipe)
    toy.replace(REPRODUCTION, "  disk_gb: 5", "  disk_gb: 5\n  gpus: 1\n  gpu_memory_gb: 8")
    toy.replace(REPRODUCTION, "algorithms:\n", "algorithms:\n  peagle: {speculative_tokens: 3, mask_token_id: 5}\n")
    return toy


def to_capture_again(toy: Toy) -> Path:
    """Take away what the capture made after its first shard; returns the folder of its shards."""
    manifest = toy.root / MANIFEST
    for name in ("manifest.json", "shard_1", "shard_2", "shard_3"):
        manifest.with_name(name).unlink(missing_ok=True)
    return manifest.parent


def check_goes_on(toy: Toy, ran: int, first_shard: str, *profile: str, **options: Any) -> None:
    """Run the capture once more: it ends well, keeps its first shard, and none of the `ran` steps before ran again."""
    again = toy.snakemake(*profile, MANIFEST, **options)
    assert again.returncode == 0, again.stdout[-4000:]
    kept = (toy.root / MANIFEST).with_name("shard_0").read_text()
    assert kept == first_shard, "a finished shard was made again"
    assert [row["step"] for row in toy.ran()[ran:]] == ["capture"], "finished steps ran again"
