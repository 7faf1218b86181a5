"""Starts a server of vLLM or SGLang whose other processes are forked from the first.

Both engines start each of their two or three processes as a new Python on a CPU, and each imports the same modules:
10 s of CPU. A forked process has them already. The engine does the same afterwards.

    serve_forked.py vllm.entrypoints.openai.api_server [options…]      # in place of python -m MODULE [options…]
"""

import importlib
import multiprocessing
import runpy
import sys

module = sys.argv[1]
sys.argv[1:] = sys.argv[2:]
if module.startswith("vllm."):
    # vLLM for CPUs overwrites VLLM_WORKER_MULTIPROC_METHOD (vllm/platforms/cpu.py).
    from vllm.utils import system_utils

    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    modules = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"]
else:
    start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: start_method("fork", force=force)
    modules = ["sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager"]
for name in modules:
    importlib.import_module(name)
runpy.run_module(module, run_name="__main__", alter_sys=True)
