"""What the plug-in takes for granted about verl, so that a verl that has moved is met here.

Each of these functions is overridden, called or relied upon. When one changes, read it again next
to `dare.integrations.verl`, run the other tests, then write the new digest down.
"""

import hashlib
import inspect
import os
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
import verl

BASE = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
DIGESTS = {
    f"{BASE}.__init__": "6f938d77859b",
    f"{BASE}._build_replay_buffer": "c6c5bd078331",
    f"{BASE}._setup": "248aee497276",
    f"{BASE}._init_dataloader": "86cf3749e087",
    f"{BASE}.fit": "7d83a81c2e62",
    f"{BASE}.step": "e22f53aadb78",
    f"{BASE}._step_once": "efdd4abe161c",
    f"{BASE}._next_train_batch": "0a5487478c0e",
    f"{BASE}._submit_batch_to_rollout": "333cd2695778",
    f"{BASE}._balance_batch": "f9b6e887d750",
    f"{BASE}._get_required_batch_multiple": "264be80d505c",
    f"{BASE}._compute_advantage": "2a4a2aa4a475",
    f"{BASE}._update_actor": "d7009bd8a69d",
    f"{BASE}._save_checkpoint": "8c2435b577e5",
    f"{BASE}._load_checkpoint": "bb446d77c48a",
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": "beb30ff5187a",
    "verl.trainer.ppo.v1.trainer_base:register_trainer": "40ec333837ab",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": "cdcecebeb7f0",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._materialize_batch": "f9fe1d149509",
    "verl.trainer.ppo.v1.agent_loop_tq": "43b7a2fca55e",
    "verl.trainer.ppo.padding_utils": "2c4a3e5369ae",
    "verl.experimental.agent_loop.agent_loop:register": "d4713a91cdbb",
    "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run": "1baec41cee2d",
    "verl.utils.dataset.rl_dataset:RLHFDataset.__getitem__": "c0ba8f285fe7",
    "verl.workers.engine_workers:ActorRolloutRefWorker.set_loss_fn": "a655a9cfc08a",
    "verl.workers.engine_workers:TrainingWorker.train_mini_batch": "02b50b03fe7d",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_step": "ec2681395b00",
    "verl.workers.utils.losses:ppo_loss": "d7c0f8772b44",
    "verl.trainer.ppo.core_algos:compute_policy_loss_vanilla": "1a0214517a6d",
    "verl.trainer.ppo.core_algos:agg_loss": "fd052ff7eb53",
}


def digest(name: str) -> str:
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return hashlib.sha256(inspect.getsource(inspect.unwrap(found)).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", DIGESTS)
def test_verl_has_not_moved(name):
    assert digest(name) == DIGESTS[name], f"{name} of verl {verl.__version__} has changed"


@pytest.mark.parametrize(
    "file", ["vllm_rollout/vllm_async_server.py", "sglang_rollout/async_sglang_server.py"]
)
def test_the_engines_take_a_budget_by_this_name(file):
    """They cannot be imported here."""
    text = (Path(verl.__file__).parent / "workers" / "rollout" / file).read_text("utf-8")
    assert 'sampling_params.pop("max_tokens")' in text


def test_verl_loads_the_plug_in_by_itself():
    [point] = [one for one in metadata.entry_points(group="verl.plugins") if one.name == "dare"]
    assert point.value == "dare.integrations.verl"
    code = "import sys, verl; print('dare.integrations.verl.trainer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.10.0", "1.0"])
def test_another_verl_is_told_of_as_an_error(version, monkeypatch, caplog):
    import dare.integrations.verl as plug_in

    monkeypatch.setattr(verl, "__version__", version)
    with pytest.raises(ValueError, match="needs 0"):
        plug_in.register()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot be used" in caplog.text


def test_verl_parses_the_example_and_would_take_the_trainer(tmp_path):
    """As its own command does, but for starting Ray."""
    from boundary import EXAMPLES

    code = (
        "import verl.trainer.main_ppo as main\n"
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "def run(config, task_runner_class):\n"
        "    print(get_trainer_cls(config.trainer.v1.trainer_mode).__name__)\n"
        "main.run_ppo = run\n"
        "main.main()\n"
    )
    words = ["--config-path", str(EXAMPLES), "--config-name", "dare"]
    command = [sys.executable, "-c", code, *words, "actor_rollout_ref.model.path=none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["DareVerlTrainer"], done.stderr
    assert any("All configuration checks passed" in line for line in lines)
