#!/usr/bin/env bash
# Installs a wheel into empty environments, one for each extra, and uses it outside the checkout.
#
#   scripts/check_wheel.sh dist/dare_rl-0.1.0-py3-none-any.whl [EXTRA ...]
#
# Without names: the curriculum alone (`core`), `train` and `report`. There are also `gpu`,
# `deepspeed` (needs g++) and `vllm`. vLLM's builds are several GB and want a GPU, so pip only says
# what it would install; VLLM_INSTALL=1 does it. `report` reads the run that `train` made.
set -euo pipefail
wheel=$(realpath "$1")
shift
checkout=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
cd "$place"
unset PYTHONPATH

install() {  # NAME [OPTION OF PIP ...]
  local name=$1 extra="[$1]" constraints=$checkout/constraints.txt
  shift
  if [ "$name" = core ]; then extra=; fi
  if [ "$name" = vllm ]; then constraints=$checkout/constraints-vllm.txt; fi
  "$python" -m venv "$name"
  "$name/bin/python" -m pip install -q --disable-pip-version-check "$@" -c "$constraints" "$wheel$extra"
}

if [ $# = 0 ]; then set -- core train report; fi
for name in "$@"; do
  if [ "$name" != vllm ]; then
    install "$name"
    "$name/bin/python" -m pip check --disable-pip-version-check
  fi
  case "$name" in
    core)
      core/bin/python - <<'PY'
import sys

from dare.integrations.loop import LoopCurriculum

loop = LoopCurriculum([{"prompt": f"{n} + {n} = ?"} for n in range(100)])
assert loop.ask()
assert "torch" not in sys.modules
PY
      echo "core: the curriculum runs without extras" ;;
    train)
      train/bin/dare --version
      train/bin/dare quickstart --steps "${STEPS:-2}"
      test -s runs/quickstart/report.html
      echo "train: dare quickstart runs from the wheel" ;;
    report)
      report/bin/dare report runs/quickstart --out report.html
      test -s report.html
      report/bin/dare presets paper >/dev/null
      if report/bin/dare train quickstart 2>refusal; then exit 1; fi
      grep -q "dare-rl\[train\]" refusal
      echo "report: a run is read without PyTorch, and training names the extra that it needs" ;;
    gpu)
      gpu/bin/python -c 'from liger_kernel.transformers import AutoLigerKernelForCausalLM'
      gpu/bin/dare doctor
      echo "gpu: fused layers import" ;;
    deepspeed)
      PATH="$PWD/deepspeed/bin:$PATH" deepspeed/bin/dare train quickstart --accelerate zero2 --processes 2 \
        --max-steps 2 --output-dir zero2
      test -s zero2/metrics.jsonl
      echo "deepspeed: two processes train with ZeRO-2" ;;
    vllm)
      if [ -n "${VLLM_INSTALL:-}" ]; then
        install vllm
        # Beside a torch for CPUs, these builds for GPUs break transformers; nothing here uses them.
        if vllm/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
          vllm/bin/python -m pip uninstall -qq -y torchaudio torchcodec torchvision
        fi
        vllm/bin/python -c 'import dare.policy.vllm, vllm; print(vllm.__version__)'
      else
        install vllm --dry-run
      fi
      echo "vllm: pip resolves it" ;;
    *) echo "no extra is called $name" >&2; exit 2 ;;
  esac
done
