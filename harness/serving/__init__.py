"""vLLM as a server for the length of a block, the environment it is quick in, and baselines without a draft."""

from harness.serving.baselines import ngram_config, speculative_config
from harness.serving.environment import ensure_environment, vllm_environment
from harness.serving.processes import ServerFailed
from harness.serving.report import ServerReport, expect
from harness.serving.server import Server, running_server

__all__ = [
    "Server",
    "ServerFailed",
    "ServerReport",
    "ensure_environment",
    "expect",
    "ngram_config",
    "running_server",
    "speculative_config",
    "vllm_environment",
]
