#!/usr/bin/env bash
# The GPU measurements that the pages still lack, one after the other, each once.
#
#   scripts/gpu_runs.sh PLACE DATA OUT [SECONDS]
#
# PLACE is filled by offline_kit.sh; vLLM's wheels are not needed. DATA holds the folder gsm8k of
# JSON lines, math/test.jsonl.gz, and second.jsonl.gz of methods_gpu_data.py
# (docs/lab/language_model.md). What is finished has OUT/NAME.done and is not run again; what needs
# more than is left of SECONDS (1,800 unless given) is named and left for another call, with the
# same OUT. Figures are in OUT/estimators and OUT/runs, output in OUT/NAME.log.
#
# `methods` makes the runs of methods_gpu.py that the page asks for: all arms of a seed, then the
# next seed. Six runs of about 230 s each are 1,400 s. It keeps them one by one, so that it begins
# with 400 s left, starts none that would end too late, and names those in its last line; called
# again it goes on. ARMS, SEEDS and STEPS choose others.
set -uo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
place=$(realpath "$1") data=$(realpath "$2") out=$(realpath -m "$3") limit=${4:-1800}
python=${PYTHON:-python3}
mkdir -p "$out"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTHONPATH=$place/site-packages:$repository/src
failed=0

stage() {  # NAME, SECONDS that it needs, SCRIPT ARGUMENT ...
  local name=$1 needs=$2 began=$SECONDS
  [ ! -e "$out/$name.done" ] || return 0
  if [ $((SECONDS + needs)) -gt "$limit" ]; then
    echo "$name: left, needs $needs s"
    return 0
  fi
  if "$python" "$repository/benchmarks/$3" "${@:4}" >"$out/$name.log" 2>&1; then
    touch "$out/$name.done"
    echo "$name: $((SECONDS - began)) s $(tail -n 1 "$out/$name.log")"
  else
    failed=1
    echo "$name: failed, see $out/$name.log"
  fi
}

if [ ! -e "$out/math_outside.jsonl.gz" ]; then
  "$python" "$repository/benchmarks/methods_gpu_data.py" \
    --sources "$data/math/test.jsonl.gz" --only-outside "$data/second.jsonl.gz" \
    --out "$out/part.jsonl.gz" >"$out/math_outside.log" 2>&1 &&
    mv "$out/part.jsonl.gz" "$out/math_outside.jsonl.gz" || { cat "$out/math_outside.log"; exit 1; }
fi
# The untrained policy's answers are known: each run would find them anew.
mkdir -p "$out/runs/start"
cp "$repository"/docs/results/methods_gpu_start/*.json "$out/runs/start/"
stage methods 400 methods_gpu.py --model "$place/model" --mixture "$data/second.jsonl.gz" \
  --math-test "$out/math_outside.jsonl.gz" --gsm8k-test "$data/gsm8k/test.jsonl.gz" \
  --arms "${ARMS:-grpo:learning_rate=2.8e-6,dare:learning_rate=2.8e-6:advantage.thin_below=0.6:max_steps=34}" \
  --seeds "${SEEDS:-4,5,6}" --steps "${STEPS:-40}" --eval-every 0 \
  --temperature 0.6 --top-p 0.95 --eval-problems 0 --out "$out/runs" \
  --max-seconds "$((limit - SECONDS > 30 ? limit - SECONDS - 30 : 1))"
stage estimators 700 estimators_gpu.py --model "$place/model" \
  --data "$data/gsm8k/train.jsonl.gz" --problems 1024 --steps 40 --at 10,20,30,40 \
  --tokens 400 --rows 32 --generation-rows 1024 --seeds 2 --out "$out/estimators"
rm -f "$out/methods.done"  # it skips the runs that are there itself, and ARMS may name others
exit $failed
