"""vLLM's own hidden-state connector (one file per request), made to run without CUDA.

Named as `kv_connector_module_path` by `served`, and by the benchmark of one pass against two. Only the copy is
replaced: the stock class does it on a CUDA stream. On CUDA both use the stock class itself.
"""

import os
from concurrent.futures import Future

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock


class _Done:
    """Stands where the stock class keeps the CUDA event of a copy: on a CPU the copy is over when it returns."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class FileConnector(stock.ExampleHiddenStatesConnector):
    """Writes `<request>.safetensors` for every finished request."""

    def _submit_async_write(self, pending: stock.PendingSave) -> None:
        first_slots = torch.tensor(pending.block_ids)[:, None] * self._block_size
        slots = (first_slots + torch.arange(self._block_size)).flatten()
        states = stock.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).contiguous()
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        lock = self._lock_fds.pop(pending.req_id, None)
        written: Future = self._executor.submit(self._write_tensors, tensors, _Done(), pending.filename, lock)
        self._req_copy_events[pending.req_id], self._req_futures[pending.req_id] = _Done(), written
        written.add_done_callback(lambda future: self._on_write_done(pending.req_id, future))
