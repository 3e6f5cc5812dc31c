#!/bin/bash
# One run on several nodes of Slurm:
#
#   sbatch examples/cluster/slurm.sh my.yaml --output-dir /shared/runs/mine
#   sbatch examples/cluster/slurm.sh --resume /shared/runs/mine
#
# KIND is ddp, fsdp2, zero2 or zero3, PER_NODE the processes of a node (one a GPU).
#SBATCH --job-name=dare
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
set -euo pipefail

export KIND=${KIND:-fsdp2} PER_NODE=${PER_NODE:-8} PORT=${PORT:-29500}
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
CONFIG=$(python -c 'import dare, os; print(os.path.dirname(dare.__file__))')/accelerate/$KIND.yaml
export FIRST CONFIG

# One launcher a node; where one node fails, the others are ended.
srun --kill-on-bad-exit=1 bash -c 'exec accelerate launch \
  --config_file "$CONFIG" --num_processes "$((SLURM_NNODES * PER_NODE))" \
  --num_machines "$SLURM_NNODES" --machine_rank "$SLURM_NODEID" \
  --main_process_ip "$FIRST" --main_process_port "$PORT" \
  -m dare train "$@"' dare "$@"
