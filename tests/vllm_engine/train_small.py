"""Three steps of training with vLLM; arguments: the folder, and settings as JSON."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from policies import SMALL, model  # noqa: E402

import tiny  # noqa: E402
from dare.training import DareTrainer  # noqa: E402


def trainer(folder: str, **changes: object) -> DareTrainer:
    settings: dict[str, object] = {
        "preset": "grpo",
        "use_vllm": True,
        "vllm_engine_kwargs": SMALL,
        "vllm_gpu_memory_utilization": 0.05,
        "per_device_train_batch_size": 16,
        "max_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
    }
    # One problem to evaluate on: the second of two processes has nothing to draw.
    held_out = tiny.problems(0.5, each=1)
    return tiny.trainer(folder, model=model(), eval_data=held_out, **{**settings, **changes})


if __name__ == "__main__":
    made = trainer(sys.argv[1], **json.loads(sys.argv[2]))
    close = made.policy.close

    def closing() -> None:
        engine = made.policy.generator._engine  # type: ignore[attr-defined]
        if hasattr(engine, "_llm"):
            layout = engine._llm.llm_engine.vllm_config.parallel_config
            print(f"ranks {layout.tensor_parallel_size}")
        close()

    made.policy.close = closing  # type: ignore[method-assign]
    made.train()
