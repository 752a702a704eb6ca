#!/usr/bin/env bash
# Trains on several machines of a SLURM cluster:  sbatch docs/launch/slurm.sh configs/x.yaml [section.key=value ...]
# Start it in the folder of Headlight, on a disk that all machines share. The same command goes on where it stopped.
#SBATCH --job-name=headlight
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=runs/slurm-%j.txt
set -euo pipefail
PYTHON=${PYTHON:-.venv/bin/python}
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)  # head would leave early, and pipefail stop this file

srun "$PYTHON" -m data.prepare "$@"  # the machines share this work, too
srun "$PYTHON" -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc_per_node="${PROCESSES:-gpu}" --max-restarts=3 \
    --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="$HOST:${PORT:-29500}" -m train.pretrain "$@"
