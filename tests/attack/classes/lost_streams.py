"""Standard streams that are full, closed, or that nobody reads, under every command; also for `--help`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import trained, write_config

PAIRS = '{"sentence_good": "the cat sat", "sentence_bad": "the mat sat on"}\n'
RUN, CONFIG = "runs/tiny", "tiny.yaml"
# every command, and arguments with which it is done
COMMANDS = {
    "train.pretrain": (CONFIG,),
    "train.sweep": (CONFIG, "seed=0", "train.warmup_steps=0,1", "--skip-decode"),
    "train.budget": (CONFIG, "train.device=cpu"),
    "data.prepare": (CONFIG,),
    "data.inspect": (CONFIG,),
    "data.tokenizer_report": (CONFIG,),
    "eval.attention": (RUN, "--text", "The cat sat."),
    "eval.chat": (RUN, "--max-new-tokens", "4"),
    "eval.compare": (RUN, "--skip-decode"),
    "eval.samples": (RUN, "The", "--max-new-tokens", "4"),
    "eval.tasks": (RUN, "--minimal-pairs", "pairs.jsonl"),
    "model.convert_kv_heads": (RUN, "--num-key-value-heads", "2", "--out", "wider"),
}
HELP = [
    *COMMANDS,
    *("train.sft", "eval.questions", "benchmarks.throughput", "benchmarks.preparing"),
    *("notebooks.execute", "train.documentation"),
]
CONTINUES = ("train.pretrain", "train.sweep")  # whose work is worth more than what they print


def cases() -> Iterator[Case]:
    for module in COMMANDS:
        yield from attacks(module, COMMANDS[module], module in CONTINUES)
    for module in HELP:
        yield from attacks(module, ("--help",), False)


def attacks(module: str, arguments: tuple[str, ...], continues: bool) -> Iterator[Case]:
    for streams in (
        {1: "unread"},
        {1: "closed"},
        {2: "full"},
        {0: "closed", 2: "closed"},
        {1: "unread", 2: "unread"},
    ):
        what = " and ".join(f"{('stdin', 'stdout', 'stderr')[n]} {how}" for n, how in streams.items())
        command, prepare = (module, *arguments), victim if arguments != ("--help",) else Path.exists
        yield Case(f"{' '.join(command)}: {what}", command, prepare, b"a\n" * 2, streams=streams, code=0)
    yield Case(
        f"{' '.join(command)}: a full disk",
        command,
        prepare,
        b"a\n",
        streams={1: "full"},
        **({"code": 0} if continues else {"says": "the output cannot be written: No space left on device"}),
    )


def victim(folder: Path) -> None:
    trained(folder)
    write_config(folder, name="another")
    (folder / "pairs.jsonl").write_text(PAIRS, encoding="utf-8")
