"""These tests need verl, in an environment of its own: `make test-verl`. Without it they are not
collected. (A folder called `verl` here would be taken for the library.)"""

import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

if find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # Before verl is imported, here and in the processes of Ray.
    os.environ |= {
        "PYTHONPATH": str(HERE),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # the engine for GPUs, FSDP2, on a CPU
        "TRANSFER_QUEUE_ENABLE": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        **{"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
    }
    sys.path.insert(0, str(HERE))
    with warnings.catch_warnings():  # of which verl and Ray have many when they are imported
        warnings.simplefilter("ignore")
        import_module("boundary")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "verl_engine" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # verl's own


def pytest_report_header() -> str | None:
    return None if find_spec("verl") else "verl is not installed: see `make test-verl`"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of 27,000 weights with one token a character."""
    import boundary

    return boundary.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray, verl's queue of one storage unit, and a group of one process."""
    import ray
    import torch
    import transfer_queue as tq
    from omegaconf import OmegaConf

    meeting = tmp_path_factory.mktemp("group") / "file"
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=0, world_size=1)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    unit = {"num_data_storage_units": 1}
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": unit}}))
    yield
    tq.close()
    ray.shutdown()
    torch.distributed.destroy_process_group()
