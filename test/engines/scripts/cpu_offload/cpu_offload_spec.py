"""A CPU tier for a vLLM server on the CPU: vLLM's own OffloadingConnector with its scheduler, manager and events.

vLLM's own code that copies blocks between GPU and CPU does not run without a GPU. This module copies with torch, synchronously.

usage: PYTHONPATH=<folder of this file>, and
--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":
  {"spec_name":"CpuCopySpec","spec_module_path":"cpu_offload_spec","cpu_bytes_to_use":33554432,"self_describing_kv_events":true}}'
"""
import time

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyWorker(OffloadingWorker):
    def __init__(self, kv_caches, blocks_per_chunk, num_chunks):
        self.per_chunk, self.groups = blocks_per_chunk, kv_caches.group_data_refs
        self.gpu = [t.tensor for t in kv_caches.tensors]
        assert all(t.dtype == torch.int8 and t.ndim == 2 for t in self.gpu), [(t.dtype, t.shape) for t in self.gpu]
        self.cpu = [torch.zeros((num_chunks * blocks_per_chunk, t.shape[1]), dtype=torch.int8) for t in self.gpu]
        self.finished = []

    def _copy(self, job_id, gpu_spec, cpu_spec, store):
        began, copied, gpu_at, cpu_at = time.time(), 0, 0, 0
        for refs, size, first in zip(self.groups, gpu_spec.group_sizes, gpu_spec.block_indices):
            gpu_blocks = [int(x) for x in gpu_spec.block_ids[gpu_at:gpu_at + size]]
            gpu_at += size
            if not size:
                continue
            skip = first % self.per_chunk  # the first GPU block may be in the middle of the first chunk
            chunks = -(-(skip + size) // self.per_chunk)
            cpu_blocks = [int(c) * self.per_chunk + k for c in cpu_spec.block_ids[cpu_at:cpu_at + chunks] for k in range(self.per_chunk)]
            cpu_at += chunks
            g, c = torch.tensor(gpu_blocks), torch.tensor(cpu_blocks[skip:skip + size])
            for i in sorted({r.tensor_idx for r in refs}):
                if store:
                    self.cpu[i][c] = self.gpu[i][g]
                else:
                    self.gpu[i][g] = self.cpu[i][c]
                copied += size * self.gpu[i].shape[1]
        self.finished.append(TransferResult(job_id, True, copied, time.time() - began))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        return


class CpuCopySpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, self.num_chunks)
        return self._worker
