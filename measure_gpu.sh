#!/usr/bin/env bash
# Measures what needs a GPU:  bash measure_gpu.sh [part ...]
#   correct   the tests that need CUDA, and every attention backend against float64
#   speed     training: attention backends, sizes, transformers beside ours; writing
#   answers   configs/reader.yaml, questions, GRPO, rollouts
#   ladder    from a beginner's loop upwards, on the text of $TEXT
#   whole     configs/ten_minutes.yaml, on the text of $TEXT
# Without a part: the first three. Most of the time goes into compiling, a minute or more for each shape, so run nothing
# beside. Each command's output goes to the terminal and to $OUT (gpu_measurements/), its time and exit code to
# $OUT/commands.txt. $PYTHON is python3. Copy the figures into EXPERIMENTS.md.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3} OUT=${OUT:-gpu_measurements} TEXT=${TEXT:-}
export HF_HUB_OFFLINE=1 WANDB_MODE=offline PYTHONUNBUFFERED=1 TQDM_DISABLE=1
[ $# -gt 0 ] || set -- correct speed answers
for part in "$@"; do
    case $part in
        correct | speed | answers) ;;
        ladder | whole) [ -n "$TEXT" ] || { echo "$part reads a text: TEXT=folder bash measure_gpu.sh $part" && exit 2; } ;;
        *) echo "no part is called '$part': use correct, speed, answers, ladder, whole" && exit 2 ;;
    esac
done
mkdir -p "$OUT"
: > "$OUT/commands.txt"

measure() { # name, seconds at most, command …
    local name=$1 limit=$2 began=$SECONDS code
    shift 2
    echo "== $name: $*"
    timeout -k 10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
    code=$?
    tail -n 30 "$OUT/$name.txt"
    echo "$name: $((SECONDS - began)) s, exit code $code" | tee -a "$OUT/commands.txt"
}

throughput() { # name, arguments …
    measure "$1" 240 "$PYTHON" -m benchmarks.throughput "${@:2}" --seconds "${STEPS_S:-8}"
}

speed() { # each backend on packed documents, which 124m.yaml isolates; then sizes and switches
    local rows=(train.micro_batch_size=32)
    throughput 124m configs/124m.yaml
    for backend in flash varlen flex sdpa; do
        throughput "124m_$backend" configs/124m.yaml "${rows[@]}" model.attn_implementation=$backend train.compile=true
    done
    throughput 124m_not_compiled configs/124m.yaml "${rows[@]}" train.compile=false
    throughput 124m_one_text configs/124m.yaml "${rows[@]}" data.isolate_documents=false
    throughput 26m configs/26m.yaml
    throughput 26m_rows configs/26m.yaml train.micro_batch_size=128
    measure versus_transformers 300 "$PYTHON" -m benchmarks.throughput configs/26m.yaml --versus transformers
    measure decode 300 "$PYTHON" -m benchmarks.throughput --decode --versus transformers --rounds 3
    measure attention 300 "$PYTHON" -m benchmarks.throughput --attention --rounds 5 --lengths 1024 4096
}

correct() {
    measure tests 240 "$PYTHON" -m pytest -q -n 8 -p no:cacheprovider tests/train/test_cuda.py
    measure doctor 240 "$PYTHON" -m train.doctor configs/124m.yaml
}

answers() {
    measure reader 600 "$PYTHON" -m train.pretrain configs/reader.yaml tracking.wandb=disabled
    measure reader_sft 900 "$PYTHON" -m train.sft configs/reader_sft.yaml tracking.wandb=disabled
    measure questions 60 "$PYTHON" -m eval.questions runs/reader_sft
    measure rollouts 120 "$PYTHON" -m benchmarks.rollouts runs/reader_sft --device cuda
    measure grpo 300 "$PYTHON" -m train.grpo configs/grpo_reader.yaml tracking.wandb=disabled train.max_steps=100
}

ladder() {
    measure ladder 900 "$PYTHON" -m benchmarks.throughput configs/26m.yaml --ladder \
        "data.source={kind: files, path: $TEXT}" --seconds 10
}

whole() {
    measure ten_minutes 900 "$PYTHON" -m train.pretrain configs/ten_minutes.yaml \
        "data.source={kind: files, path: $TEXT}"
}

for part in "$@"; do
    "$part"
done
cat "$OUT/commands.txt"
