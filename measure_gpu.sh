#!/usr/bin/env bash
# Measures everything that needs a GPU, the most important first: bash measure_gpu.sh [python]
# Tables go to the terminal and to $OUT (default gpu_measurements/). Copy the figures into EXPERIMENTS.md.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${1:-python3}
OUT=${OUT:-gpu_measurements}
export HF_HUB_OFFLINE=1 WANDB_MODE=offline
mkdir -p "$OUT"

measure() { # name, seconds at most, command …
    local name=$1 limit=$2
    shift 2
    echo "== $name: $*"
    timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt"
}

local_text="data.source={kind: files, path: ../shared/data/tinystories_samples}"
measure correct 400 "$PYTHON" -m pytest -q tests/train/test_cuda.py tests/model -m "not slow"
measure backends 120 "$PYTHON" -m train.doctor configs/124m.yaml  # each against float64, packed documents or not
for backend in flash flash3 flash4 flex sdpa; do # training on packed documents, which 124m.yaml isolates
    for compile in false true; do
        measure "documents_${backend}_compile_$compile" 90 "$PYTHON" -m benchmarks.throughput configs/124m.yaml \
            model.attn_implementation=$backend train.compile=$compile
    done
done
measure speed_124m 120 "$PYTHON" -m benchmarks.throughput configs/124m.yaml
measure speed_26m 120 "$PYTHON" -m benchmarks.throughput configs/26m.yaml
measure versus_transformers 300 "$PYTHON" -m benchmarks.throughput configs/124m.yaml --versus transformers
measure attention 200 "$PYTHON" -m benchmarks.throughput --attention
measure decode 200 "$PYTHON" -m benchmarks.throughput --decode --versus transformers
measure ladder 400 "$PYTHON" -m benchmarks.throughput configs/26m.yaml --ladder "$local_text"
measure profile_124m 120 "$PYTHON" -m benchmarks.throughput configs/124m.yaml --profile "$OUT/profile"
measure bf16 240 "$PYTHON" -m train.pretrain configs/demo.yaml name=gpu_bf16 train.precision=bf16
measure fp32 240 "$PYTHON" -m train.pretrain configs/demo.yaml name=gpu_fp32 train.precision=fp32
measure ten_minutes 900 "$PYTHON" -m train.pretrain configs/ten_minutes.yaml "$local_text"
