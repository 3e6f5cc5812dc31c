#!/usr/bin/env bash
# Installs a wheel into empty environments and uses it outside the checkout.
#
#   scripts/check_wheel.sh dist/dare_rl-0.1.0-py3-none-any.whl
#
# First without extras (the curriculum alone), then with `train`, for the quickstart.
set -euo pipefail
wheel=$(realpath "$1")
constraints=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../constraints.txt")
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
cd "$place"
unset PYTHONPATH

"$python" -m venv core
core/bin/python -m pip install -qq --disable-pip-version-check -c "$constraints" "$wheel"
core/bin/python - <<'PY'
import sys

from dare.integrations.loop import LoopCurriculum

loop = LoopCurriculum([{"prompt": f"{n} + {n} = ?"} for n in range(100)])
assert loop.ask()
assert "torch" not in sys.modules
PY
echo "the curriculum runs without extras"

"$python" -m venv train
train/bin/python -m pip install -qq --disable-pip-version-check -c "$constraints" "$wheel[train]"
train/bin/dare --version
train/bin/dare quickstart --steps "${STEPS:-2}"
test -s runs/quickstart/report.html
echo "dare quickstart runs from the wheel"
