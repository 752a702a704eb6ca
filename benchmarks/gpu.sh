#!/usr/bin/env bash
# Measures what needs a GPU:  bash benchmarks/gpu.sh [--dry-run] [part ...]
#   quick     at most eight minutes on an H100: does everything work there, and how fast is configs/124m.yaml?
#   real      five minutes of configs/ten_minutes.yaml, on the text of $TEXT
#   correct   the tests that need CUDA, and every attention backend against float64
#   speed     training: attention backends, sizes, transformers and nanoGPT beside ours (NANOGPT=its checkout); decoding
#   answers   configs/reader.yaml, questions, GRPO
#   ladder    from a beginner's loop upwards, on the text of $TEXT
# Without a part: quick. Most of the time goes into compiling, a minute or more for each shape, so run nothing beside.
# --dry-run runs the same commands of quick, real, speed and ladder on a CPU, with tiny sizes, so that no minute of a
# GPU is lost to a mistake here. Each command's output goes to the terminal and to $OUT (gpu_measurements/); its seconds, its
# exit code and the one that was expected go to $OUT/commands.txt. $PYTHON is python3. Exit code 1: one was another.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} OUT=${OUT:-gpu_measurements} TEXT=${TEXT:-} DRY_RUN=
export HF_HUB_OFFLINE=1 WANDB_MODE=offline PYTHONUNBUFFERED=1 TQDM_DISABLE=1
[ "${1:-}" != --dry-run ] || { DRY_RUN=yes && export HEADLIGHT_DRY_RUN=1 && shift; }
[ $# -gt 0 ] || set -- quick
for part in "$@"; do
    case $part in
        quick) ;;
        speed) ;;
        correct | answers) [ -z "$DRY_RUN" ] || { echo "$part has no dry run: use quick, real, speed, ladder" && exit 2; } ;;
        ladder | real) [ -n "$TEXT" ] || { echo "$part reads a text: TEXT=folder bash benchmarks/gpu.sh $part" && exit 2; } ;;
        *) echo "no part is called '$part': use quick, real, correct, speed, answers, ladder" && exit 2 ;;
    esac
done
mkdir -p "$OUT"
: > "$OUT/commands.txt"
failures=0
tiny=() # a model, rows and steps for which a CPU takes no time
if [ -n "$DRY_RUN" ]; then
    tiny=(train.device=cpu train.processes=1 data.sequence_length=32 data.tokenizer.vocab_size=512 model.hidden_size=32)
    tiny+=(model.num_hidden_layers=1 model.num_attention_heads=2 model.num_key_value_heads=1 train.tokens_per_step=128)
fi

measure() { # name, seconds at most, command …; EXPECTED=2 before it: this exit code is the right one
    local name=$1 limit=$2 began=$SECONDS expected=${EXPECTED:-0} code
    [ -z "$DRY_RUN" ] || limit=$((5 * limit))  # a CPU takes longer, and nobody waits for it
    shift 2
    echo "== $name: $*"
    timeout -k 10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
    code=$?
    tail -n 30 "$OUT/$name.txt"
    [ "$code" = "$expected" ] || failures=$((failures + 1))
    echo "$name: $((SECONDS - began)) s, exit code $code (expected: $expected)" | tee -a "$OUT/commands.txt"
}

throughput() { # name, arguments …
    measure "$1" "${LIMIT_S:-240}" "$PYTHON" -m benchmarks.training "${@:2}" "${tiny[@]}" --seconds "${STEPS_S:-8}"
}

quick() { # the limits make eight minutes together; one shape is compiled
    local few=(train.precision=bf16 tracking.wandb=disabled eval.every=0 eval.attention.every=0 output_dir="$OUT/runs")
    few+=(data.source.documents=400 data.source.validation_documents=40 eval.max_tokens=2000 train.checkpoint_every=0)
    local five=("${few[@]}" train.max_steps=5 train.tokens_per_step=4096)
    local large=(train.micro_batch_size=32 model.attn_implementation=flash train.compile=true) seconds=55
    if [ -n "$DRY_RUN" ]; then
        few+=(train.device=cpu train.processes=1) five+=(train.device=cpu train.processes=1)
        large=(train.micro_batch_size=2 train.compile=true) seconds=2
    fi
    rm -rf "$OUT/runs"
    measure doctor 65 "$PYTHON" -m train.doctor configs/small.yaml "output_dir=$OUT/runs"
    measure pretrain 40 "$PYTHON" -m train.pretrain configs/small.yaml name=base "${few[@]}" train.max_steps=40 \
        data.sequence_length=256 model.max_position_embeddings=512
    measure sft 40 "$PYTHON" -m train.sft configs/sft_demo.yaml name=chat init_from="$OUT/runs/base" "${five[@]}" \
        eval.questions=0
    measure grpo 45 "$PYTHON" -m train.grpo configs/grpo_demo.yaml name=grpo init_from="$OUT/runs/chat" "${five[@]}" \
        eval.questions=0 grpo.reward=tests.train.grpo_helpers:vowels  # one that an untrained model earns
    measure distill_on_policy 45 "$PYTHON" -m train.distill configs/distill_demo.yaml name=student "${five[@]}" \
        distill.teacher="$OUT/runs/base" distill.on_policy=1.0 distill.max_new_tokens=16 \
        data.sequence_length=128
    EXPECTED=2 measure flex_in_float32_is_refused 25 "$PYTHON" -m train.pretrain configs/small.yaml name=flex "${few[@]}" \
        model.attn_implementation=flex train.precision=fp32 train.compile=true
    measure gradients_and_resume 80 "$PYTHON" -m pytest -q -p no:cacheprovider tests/train/test_cuda.py \
        -k "compiled_gradients or (resumes_exactly and bf16-False)"
    LIMIT_S=140 STEPS_S=$seconds throughput 124m configs/124m.yaml "${large[@]}"  # some 40 steps after compiling
}

real() {
    local text=("data.source={kind: files, path: $TEXT}" train.max_minutes=5 tracking.wandb=disabled)
    if [ -n "$DRY_RUN" ]; then
        text+=(train.device=cpu train.processes=1 train.max_minutes=0.2 train.tokens_per_step=512 output_dir="$OUT/runs")
        text+=(data.sequence_length=64 model.hidden_size=32 model.num_hidden_layers=2 model.num_attention_heads=2)
        text+=(data.tokenizer.vocab_size=512 eval.max_tokens=2000 name=ten_minutes_dry)
    fi
    measure ten_minutes 480 "$PYTHON" -m train.pretrain configs/ten_minutes.yaml "${text[@]}"
}

correct() {
    measure tests 240 "$PYTHON" -m pytest -q -n 8 -p no:cacheprovider tests/train/test_cuda.py \
        tests/train/test_faults.py -k "not test_faults or moves_nothing_and_stops"
    measure doctor 240 "$PYTHON" -m train.doctor configs/124m.yaml
}

speed() { # each backend on packed documents, which 124m.yaml isolates; then sizes and switches
    local rows=(train.micro_batch_size=32) backends=(flash varlen flex sdpa) more=(train.micro_batch_size=128) tokens=256
    [ -z "$DRY_RUN" ] || { rows=(train.micro_batch_size=2) more=("${rows[@]}") backends=(flash sdpa) tokens=8 STEPS_S=1; }
    throughput 124m configs/124m.yaml
    [ -z "${NANOGPT:-}" ] || nanogpt
    for backend in "${backends[@]}"; do
        throughput "124m_$backend" configs/124m.yaml "${rows[@]}" model.attn_implementation=$backend train.compile=true
    done
    throughput 124m_not_compiled configs/124m.yaml "${rows[@]}" train.compile=false
    throughput 124m_one_text configs/124m.yaml "${rows[@]}" data.isolate_documents=false
    throughput 26m configs/26m.yaml
    throughput 26m_rows configs/26m.yaml "${more[@]}"
    measure versus_transformers 300 "$PYTHON" -m benchmarks.training configs/26m.yaml "${tiny[@]}" \
        --versus transformers
    measure decoding 300 "$PYTHON" -m benchmarks.decoding configs/base.yaml "${tiny[@]}" --tokens "$tokens" \
        --batches 1,16,128 --versus transformers --rounds 3
}

nanogpt() { # its own train.py and default shape, GPT-2's 124 M parameters, on random tokens; see "time" of its last lines
    local folder
    folder=$(realpath "$OUT")/nanogpt
    local options=(--dataset="$folder" --out_dir="$folder" --max_iters=60 --eval_interval=1000 --eval_iters=1 --log_interval=10
        --gradient_accumulation_steps=1)
    if [ -z "$DRY_RUN" ]; then
        options+=(--batch_size=32)
    else
        options+=(--device=cpu --dtype=float32 --compile=False --batch_size=1 --block_size=32 --n_layer=1 --n_embd=96)
    fi
    mkdir -p "$folder"
    "$PYTHON" -c "import numpy as np, sys
for name in ('train', 'val'): np.random.randint(0, 50304, 10**6).astype('uint16').tofile(f'{sys.argv[1]}/{name}.bin')" "$folder"
    measure nanogpt 240 env -C "$NANOGPT" "$(realpath -s "$(command -v "$PYTHON")")" train.py "${options[@]}"
}

answers() {
    measure reader 600 "$PYTHON" -m train.pretrain configs/reader.yaml tracking.wandb=disabled
    measure reader_sft 900 "$PYTHON" -m train.sft configs/reader_sft.yaml tracking.wandb=disabled
    measure questions 60 "$PYTHON" -m eval.questions runs/reader_sft
    measure grpo 300 "$PYTHON" -m train.grpo configs/grpo_reader.yaml tracking.wandb=disabled train.max_steps=100
}

ladder() {
    local short=()
    [ -z "$DRY_RUN" ] || short=(train.max_minutes=0.05)
    measure ladder 900 "$PYTHON" -m train.sweep configs/speed_ladder.yaml "data.source={kind: files, path: $TEXT}" \
        "output_dir=$OUT/runs" "${tiny[@]}" "${short[@]}"
}

for part in "$@"; do
    "$part"
done
cat "$OUT/commands.txt"
[ "$failures" = 0 ]
