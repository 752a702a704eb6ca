"""Do two run directories hold the same, to the last bit, but for what a clock decides?"""

from __future__ import annotations

import base64
import json
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

CLOCKS = {"time_s", "seconds", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s"}
CLOCKS |= {"attention_seconds", "wandb_id", "logged"}
# lines that hold minutes, how the run was resumed, or where fine-tuning finds its tokenizer, at first in the other run
SPOKEN = re.compile(
    r"^    path: runs/|% of the run\. Open |\d minutes \(|^resumed from|as this run began|\(auto: |\(asked for\)"
    r"|\d{4}-\d\d-\d\d\.$"  # Headlight's own commit, and the day
)


def difference(ours: Path, theirs: Path) -> str:
    """The first difference, in words, or ""."""
    here, there = _files(ours), _files(theirs)
    for what, names in (("only in the killed run", here - there), ("missing in the killed run", there - here)):
        for name in sorted(names):
            return f"{name}: {what}"
    for name in sorted(here):
        if problem := _compare(ours / name, theirs / name):
            return f"{name}: {problem}"
    return ""


def leftovers(folder: Path) -> list[str]:
    """What a kill left half done and nobody tidied up."""
    marks = (".tmp", ".old", ".partial")
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in marks or ".damaged" in path.name
    )


def checkpoints_kept(run: Path) -> dict[str, str]:
    """The checkpoints of a run: each step's name, and what `latest` and `best` hold."""
    folder = run / "checkpoints"
    kept = {path.name: "" for path in folder.iterdir() if path.is_dir()}
    return kept | {path.name: path.read_text().strip() for path in folder.iterdir() if path.is_file()}


def _files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


def _compare(ours: Path, theirs: Path) -> str:
    a, b = ours.read_bytes(), theirs.read_bytes()
    if a == b:
        return ""
    if ours.suffix == ".jsonl":
        return _compare_lines(a, b)
    if ours.suffix == ".json":
        return _compare_values(_without_clocks(json.loads(a)), _without_clocks(json.loads(b)))
    if ours.suffix == ".safetensors":
        return _compare_tensors(ours, theirs)
    if ours.suffix == ".npz":
        return _compare_arrays(ours, theirs)
    if ours.suffix in (".md", ".yaml"):
        x, y = ([line for line in raw.decode().splitlines() if not SPOKEN.search(line)] for raw in (a, b))
        return next((f"{p!r}, and undisturbed {q!r}" for p, q in zip(x, y, strict=False) if p != q), "") or (
            "" if len(x) == len(y) else f"{len(x)} lines, and undisturbed {len(y)}"
        )
    if ours.suffix == ".html":
        return "" if _page(a.decode()) == _page(b.decode()) else "differs"
    return "differs"


def _page(text: str) -> list[bytes]:
    """The lines of the viewer's page or of live.html, deflated numbers inflated, without seconds."""
    lines = []
    for line in text.splitlines():
        raw = line.encode()
        if len(line) > 1000:
            with suppress(ValueError, zlib.error):
                raw = zlib.decompress(base64.b64decode(line), -zlib.MAX_WBITS)
        lines.append(re.sub(rb'"seconds":[-+.\de]+|\b\d+ seconds', b"", raw))
    return lines


def _compare_lines(a: bytes, b: bytes) -> str:
    x, y = a.decode().splitlines(), b.decode().splitlines()
    for number, (p, q) in enumerate(zip(x, y, strict=False), start=1):
        if problem := _compare_values(_without_clocks(json.loads(p)), _without_clocks(json.loads(q))):
            return f"line {number} (step {json.loads(q).get('step')}): {problem}"
    if len(x) != len(y):
        longer, whose = (x, "too many") if len(x) > len(y) else (y, "missing")
        return f"{abs(len(x) - len(y))} lines {whose}, the last {longer[-1][:120]}"
    return ""


def _compare_values(p: Any, q: Any, where: str = "") -> str:
    if isinstance(p, dict) and isinstance(q, dict):
        for key in [*q, *(key for key in p if key not in q)]:
            if key not in p or key not in q:
                return f"{where}{key}: {'missing' if key not in p else 'too many'}"
            if problem := _compare_values(p[key], q[key], f"{where}{key}."):
                return problem
        return ""
    return "" if p == q else f"{where.rstrip('.')}: {str(p)[:80]}, and undisturbed {str(q)[:80]}"


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        value = {key: _without_clocks(each) for key, each in value.items() if key not in CLOCKS}
        value.pop("training/trainer_state.json", None)  # of a manifest: a hash over clocks
        return value
    if isinstance(value, list):
        return [_without_clocks(each) for each in value if not (isinstance(each, str) and SPOKEN.search(each))]
    return value


def _compare_tensors(ours: Path, theirs: Path) -> str:
    from safetensors.numpy import load_file

    a, b = load_file(ours), load_file(theirs)
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            return f"tensor {name} is in one of them only"
        if a[name].tobytes() != b[name].tobytes():
            return f"tensor {name}: {int((a[name] != b[name]).sum())} of {a[name].size} entries differ"
    return "differs beside its tensors"


def _compare_arrays(ours: Path, theirs: Path) -> str:
    import numpy as np

    with np.load(ours) as a, np.load(theirs) as b:
        if set(a) != set(b):
            return f"arrays {sorted(set(a) ^ set(b))} are in one of them only"
        for name in a:
            if name == "about":
                x, y = (_without_clocks(json.loads(str(file[name]))) for file in (a, b))
                if problem := _compare_values(x, y):
                    return problem
            elif a[name].tobytes() != b[name].tobytes():
                return f"array {name} differs"
    return ""
