"""Configs that must agree: the same 20 steps, however they are computed, each run by its own
command line.

Every step of such a run has the loss and the gradient norm of the reference run. Losses alone prove
too little: a sum in place once compiled to the right loss and to gradients of zero; and a wrong
divisor makes gradients too long, which AdamW and Muon do not notice.
"""

import json
import math
from statistics import fmean, stdev

import pytest

from tests.train.helpers import metrics, pretrain, pretrain_rank, run_world, write_config

STEPS = 20
ADAMW = ["train.optimizer={name: adamw, lr: 0.003, eps: 1.0e-8}"]
ALONE = ["data.sequence_length=48"]
JOINED = ["data.sequence_length=48", "data.rows_joined=4"]
EAGER, SDPA, FLASH = (f"model.attn_implementation={name}" for name in ("eager", "sdpa", "flash"))
EXPERTS = ["model.num_experts=4", "model.moe_intermediate_size=16", "model.router_aux_loss_coef=0.1"]
EXPERTS += ["model.loadable_elsewhere=false"]
TWO = ["train.processes=2"]

# What makes a reference run, and how far others may be from it, as shares of its loss and of its
# gradient norm: in the first step, where weights are the same; in any step; and on average.
# Measured over four seeds, on an EPYC with AVX-512 and the same kept to AVX2, some on an older EPYC
# without AVX-512: a tenth to a half of that.
REFERENCES = {
    # no bit, with dropout: nothing else may draw from its random numbers
    "exact": ([*ADAMW, "model.hidden_dropout=0.1"], {"loss": (0, 0, 0), "grad_norm": (0, 0, 0)}),
    # float32 has 24 bits. AdamW passes rounding on as it is, and makes it larger where a gradient
    # is nothing else
    "fp32": (ADAMW, {"loss": (1e-6, 2e-6, 3e-7), "grad_norm": (1e-6, 2e-5, 3e-7)}),
    # the balancing loss is one of rows, and no row is split
    "experts": ([*ADAMW, *EXPERTS], {"loss": (1e-6, 2e-6, 3e-7), "grad_norm": (1e-6, 5e-6, 3e-7)}),
    # Muon makes small singular values up to 3.4445 ** 5, 500 times, larger, and float32's rounding
    # in them
    "muon": ([], {"loss": (1e-6, 5e-4, 2e-4), "grad_norm": (2e-6, 2e-2, 2e-3)}),
    # bfloat16 has 8 bits; `auto` takes blocked attention there
    "bf16": ([*ADAMW, "train.precision=bf16"], {"loss": (1e-6, 5e-3, 3e-3), "grad_norm": (5e-4, 3e-1, 5e-2)}),
}
CLASSES = [
    ("exact", "prepared already", []),
    ("exact", "prepared anew", ["output_dir=elsewhere"]),
    ("exact", "looked at and saved", ["eval.every=3", "eval.hooks=[validation, samples]", "train.checkpoint_every=4"]),
    ("exact", "layers computed twice", ["train.activation_checkpointing=true"]),
    ("fp32", "row by row", ["train.micro_batch_size=1"]),
    ("fp32", "four times two rows", ["train.micro_batch_size=2"]),
    ("fp32", "a conversation a row", ALONE),
    ("fp32", "rows of one joined by four", JOINED),
    ("fp32", "the formula", [EAGER]),
    ("fp32", "the formula, a conversation a row", [EAGER, *ALONE]),
    ("fp32", "flash", [FLASH]),
    ("fp32", "two processes", TWO),
    ("fp32", "compiled", ["train.compile=true"]),
    ("experts", "four times two rows", ["train.micro_batch_size=2"]),
    ("experts", "two processes", TWO),
    ("muon", "four times two rows", ["train.micro_batch_size=2"]),
    ("muon", "two processes", TWO),
    ("muon", "ddp", ["train.parallel=ddp"]),
    ("muon", "fsdp2", ["train.parallel=fsdp2"]),
    ("bf16", "the formula", [EAGER]),
    ("bf16", "sdpa", [SDPA]),
    ("bf16", "flash", [FLASH]),
    ("bf16", "a conversation a row, in pieces", [*ALONE, "train.micro_batch_size=8"]),
]
SLOW = {"fp32, compiled", "fp32, the formula, a conversation a row", "muon, two processes", "muon, ddp", "muon, fsdp2"}
SLOW |= {"bf16, flash", "bf16, a conversation a row, in pieces"}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Conversations of 48 tokens, so that four fill a row, with answers of 1 to 15 tokens: every
    row is trained on another number of them. Windows of 16 tokens are computed in chunks where a
    row is 192 long (model/backends).
    """
    folder = tmp_path_factory.mktemp("classes")
    said = "mat sat on the cat and rat"
    records = []
    for i in range(140):
        answer = said[: 1 + i * 5 % 15]
        question = f"{i} {('cat', 'dog', 'rat')[i % 3]}".ljust(26 - len(answer), "?")
        turns = (("user", question), ("assistant", answer))
        records.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    # 128: 4 steps an epoch, without a rest
    for name, part in (("train", records[:128]), ("held_out", records[128:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    source = {"kind": "files", "path": str(folder / "train.jsonl"), "validation_path": str(folder / "held_out.jsonl")}
    windows = ["sliding_attention", "full_attention", "sliding_attention"]
    return write_config(
        folder,
        model={"num_hidden_layers": 3, "sliding_window": 16, "layer_types": windows},
        # in order: shuffled, rows of one conversation would come in another order than rows of four
        data={"source": source, "records": "conversations", "isolate_documents": True, "shuffle": False}
        | {"sequence_length": 192, "rows_joined": 1},
        train={"max_steps": STEPS, "tokens_per_step": 8 * 192, "checkpoint_every": 0, "device": "cpu"}
        | {"compile": False, "processes": 1},
        eval={"every": 0, "hooks": []},
    )


@pytest.fixture(scope="module")
def reference(config):
    """The lines of a reference run, which is made once."""
    made = {}

    def lines(kind):
        if kind not in made:
            pretrain(config, f"name={kind}", *REFERENCES[kind][0])
            made[kind] = metrics(config.parent / "runs" / kind, "train")
        return made[kind]

    return lines


@pytest.mark.parametrize(
    ("kind", "how", "overrides"),
    [
        pytest.param(kind, how, more, id=f"{kind}, {how}", marks=[pytest.mark.slow] * (f"{kind}, {how}" in SLOW))
        for kind, how, more in CLASSES
    ],
)
def test_it_learns_step_by_step_as_the_reference_does(config, reference, monkeypatch, kind, how, overrides):
    theirs = reference(kind)
    more = [f"name={kind} {how.replace(',', '')}", *REFERENCES[kind][0], *overrides]
    monkeypatch.chdir(config.parent)
    of_ranks = 2 if any("parallel" in each for each in overrides) else 1
    if of_ranks == 2 or overrides is TWO:
        assert run_world(of_ranks, pretrain_rank, config, more) == [0] * of_ranks
    else:
        pretrain(config, *more)
    [folder] = config.parent.glob(f"*/{more[0].removeprefix('name=')}")
    ours = metrics(folder, "train")
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in ours] == [line["tokens"] for line in theirs]
    assert theirs[-1]["loss"] < 0.7 * theirs[0]["loss"]  # what agrees is a run that learns
    for key, (at_first, largest, drift) in REFERENCES[kind][1].items():
        differences = [(a[key] - b[key]) / b[key] for a, b in zip(ours, theirs, strict=True)]
        assert abs(differences[0]) <= at_first, (key, differences)
        assert max(map(abs, differences)) <= largest, (key, differences)
        # Rounding goes either way, so its mean is zero within a few standard errors; a fault goes
        # one way. `drift` is the floor: the figures themselves are rounded to float32. And where
        # rounding grows, a step's difference comes from the one before, so that the standard error
        # says less than it seems to.
        allowed = max(drift, 4 * stdev(differences) / math.sqrt(STEPS))
        assert abs(fmean(differences)) <= allowed, (key, differences)
