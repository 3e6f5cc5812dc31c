"""A machine without a GPU, as verl's layer of platforms wants it: verl ships none for CPUs.

Loaded by `VERL_USE_EXTERNAL_MODULES`, before anything asks which machine this is.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformRegistry
from verl.plugin.platform.platform_base import PlatformBase


class _Device(ModuleType):
    """torch.cpu, with the figures of memory that verl logs."""

    def __getattr__(self, name: str) -> Any:
        if name == "get_device_name":
            return lambda *_: "CPU"
        if name == "mem_get_info":
            return lambda *_: (1, 1)
        if name in ("get_rng_state", "set_rng_state"):
            return getattr(torch, name)
        if "memory_" in name and "reset" not in name:
            return lambda *_: 0
        if name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect"):
            return lambda *_: None
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("torch.cpu")

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # verl hands it to Tensor.to

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None
