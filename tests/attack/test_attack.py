"""What comes from outside may be anything: a command does its work, or says in one line what is wrong (exit code 2).

One test a boundary: YAML, records and their files, model directories of others, requests. What is wrong is drawn by
hypothesis; the quick tests draw a few examples, the slow ones many.
"""

import gzip
import json
import os
import shutil
import sys
import unicodedata
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.command import InputError
from configs.text import INVISIBLE, KEPT
from tests.attack.mutations import mutated
from tests.attack.victims import CONFIG, foreign, trained, write_config
from tests.processes import run_module
from tests.serve.conftest import folder as folder
from tests.serve.conftest import serving
from train.config import load_run_config

SEEDS = st.integers(0, 10**6)
SHIPPED = sorted(Path("configs").glob("*.y*ml"))
QUICK, MANY = 40, 400
TEXT = [{"text": f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}."} for i in range(30)]
CHATS = [
    {"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"It is {i}."}]}
    for i in range(30)
]
PAIRS = [{"prompt": f"What is {i}?", "chosen": f"It is {i}.", "rejected": "I do not know."} for i in range(30)]


def drawn(count: int):
    """Settings: this many examples, the same ones in every run."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=checks)


def ends_well(module: str, *arguments, stdin: str = "") -> None:
    """The command ends with exit code 0, or with 2 and one last line that says what is wrong."""
    done = run_module(module, *arguments, stdin=stdin)
    said = done.stderr.splitlines()
    assert done.returncode in (0, 2), said[-1:]
    assert done.returncode == 0 or said[-1].startswith("error: "), said
    hidden = {c for c in done.stdout + done.stderr if unicodedata.category(c) in INVISIBLE}
    assert hidden <= set(KEPT) | {"\r", "\x1b"}  # a progress bar on stderr moves the cursor


def damaged(raw: bytes, seed: int) -> bytes:
    """These bytes with something wrong: cut off, repeated, with other bytes in them, or a bit flipped."""
    at = seed % (len(raw) + 1)
    kinds = [raw[:at], raw + raw, raw[:at] + b"\xff\x00\xfe" + raw[at:], b"\0" * at, gzip.compress(raw), b""]
    if raw:
        flipped = bytearray(raw)
        flipped[at % len(raw)] ^= 1 << seed % 8
        kinds.append(bytes(flipped))
    return kinds[seed % len(kinds)]


@given(SEEDS, st.sampled_from(["value", "text", "bytes"]))
@drawn(200)
def test_any_config_is_read_or_refused_in_one_line(tmp_path, seed, kind):
    file = tmp_path / "x.yaml"
    shipped = SHIPPED[seed % len(SHIPPED)].read_text(encoding="utf-8")
    if kind == "value":
        file.write_text(json.dumps(mutated(CONFIG, seed)))
    elif kind == "bytes":
        file.write_bytes(damaged(shipped.encode(), seed))
    else:
        lines = shipped.splitlines()
        lines.insert(seed % (len(lines) + 1), lines[seed % 7 % len(lines)] + "\t: [&a {*a" * (seed % 2))
        file.write_text("\n".join(lines))
    problem = ""
    try:
        load_run_config(file)
    except InputError as error:
        problem = str(error)
    assert "\n" not in problem


def records_end_well(folder: Path, seed: int, records: list, kind: str) -> None:
    shutil.rmtree(folder / "runs", ignore_errors=True)
    changed = [*records]
    changed[seed % len(records)] = mutated(records[seed % len(records)], seed)
    lines = "".join(json.dumps(record) + "\n" for record in changed)
    (folder / "data.jsonl").write_text(lines, encoding="utf-8")
    source = {"kind": "files", "path": str(folder / "data.jsonl")}
    config = write_config(folder, data={"source": source, "records": kind}, output_dir=str(folder / "runs"))
    ends_well("data.prepare", config, f"data.on_bad_record={('stop', 'skip')[seed % 2]}")


@pytest.mark.parametrize(
    ("records", "kind"), [(TEXT, "text"), (CHATS, "conversations"), (PAIRS, "pairs")], ids=["text", "chats", "pairs"]
)
@given(SEEDS)
@drawn(QUICK)
def test_any_record_is_prepared_or_refused_in_one_line(tmp_path, records, kind, seed):
    records_end_well(tmp_path, seed, records, kind)


def written(folder: Path, kind: str) -> Path:
    """The texts in a file of this kind."""
    file, lines = folder / f"data.{kind}", [record["text"] for record in TEXT]
    raw = {
        "txt": "\n\n".join(lines),
        "jsonl": "".join(json.dumps(record) + "\n" for record in TEXT),
        "json": json.dumps(TEXT),
        "csv": "id,text\n" + "".join(f'{i},"{line}"\n' for i, line in enumerate(lines)),
    }
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": lines}), file)
    elif kind == "jsonl.gz":
        file.write_bytes(gzip.compress(raw["jsonl"].encode()))
    else:
        file.write_text(raw[kind], encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv", "parquet", "jsonl.gz"])
@given(SEEDS)
@drawn(20)
def test_any_file_of_text_is_prepared_or_refused_in_one_line(tmp_path, kind, seed):
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    file = written(tmp_path, kind)
    file.write_bytes(damaged(file.read_bytes(), seed))
    source = {"kind": "files", "path": str(file)}
    config = write_config(tmp_path, data={"source": source}, output_dir=f"{tmp_path}/runs")
    ends_well("data.prepare", config)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model directory without our manifest, as somebody else would give it."""
    return foreign(tmp_path_factory.mktemp("foreign"))


MODEL_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def directory_ends_well(model: Path, folder: Path, name: str, seed: int) -> None:
    shutil.rmtree(folder / "model", ignore_errors=True)
    file = shutil.copytree(model, folder / "model") / name
    if not file.exists():
        pytest.skip(f"no {name} in it")
    if file.suffix == ".json" and seed % 4:
        file.write_text(json.dumps(mutated(json.loads(file.read_text(encoding="utf-8")), seed)), encoding="utf-8")
    else:
        file.write_bytes(damaged(file.read_bytes(), seed))
    ends_well("eval.samples", folder / "model", "a", "--max-new-tokens", "2", "--device", "cpu")


@pytest.mark.parametrize("name", MODEL_FILES)
@given(SEEDS)
@drawn(QUICK)
def test_any_model_directory_is_opened_or_refused_in_one_line(model, tmp_path, name, seed):
    directory_ends_well(model, tmp_path, name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_FILES)
@given(SEEDS)
@drawn(MANY)
def test_many_model_directories(model, tmp_path, name, seed):
    directory_ends_well(model, tmp_path, name, seed)


@given(SEEDS)
@drawn(15)
def test_a_damaged_run_continues_or_is_refused_in_one_line(tmp_path, seed):
    """Its own files are trusted once their checksum is right: what is wrong is found before anything is lost."""
    shutil.rmtree(tmp_path / "case", ignore_errors=True)
    run = trained(tmp_path / "case")
    ours = (".json", ".jsonl", ".safetensors", ".yaml")
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.suffix in ours)
    file = files[seed % len(files)]
    file.write_bytes(damaged(file.read_bytes(), seed))
    before = {path: path.read_bytes() for path in run.glob("checkpoints/*/model.safetensors")}
    here = Path.cwd()
    os.chdir(tmp_path / "case")
    try:
        done = run_module("train.pretrain", "tiny.yaml", "train.max_steps=6", "eval.hooks=[]")
    finally:
        os.chdir(here)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert {path: path.read_bytes() for path in before if path.exists()} == before


BODY = {
    "model": "chat",
    "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who has the ball?"}],
    "max_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["."],
    "seed": 1,
    "n": 1,
    "logprobs": True,
    "stream": False,
    "inspect": {"step": None, "adapter": None, "heads": [[0, 1, 0.5]], "answer_ids": [5]},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
}


def test_any_request_is_answered(folder):
    """Never with a fault of the server: with an answer, or with what is wrong with the request."""
    with serving(folder) as (address, _), httpx.Client(timeout=60) as client:
        bodies = {
            "/v1/chat/completions": BODY,
            "/v1/completions": {"model": "text", "prompt": "A", "max_tokens": 2, "logprobs": 1, "echo": True},
            "/live/models/chat/attention": {"ids": [1, 2], "position": 1, "step": 10, "heads": [[0, 0, 0]]},
        }

        @given(SEEDS, st.sampled_from([*bodies]))
        @drawn(80)
        def request(seed, path):
            raw = json.dumps(mutated(bodies[path], seed)).encode()
            answer = client.post(address + path, content=damaged(raw, seed) if seed % 5 == 0 else raw)
            assert answer.status_code < 500, (answer.text, raw)
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"]

        request()


# Whose config may name code to run: the user's own, and nobody else's


MODULE = 'from pathlib import Path\nPath("IMPORTED").touch()\ndef look(event): pass\n'
SHORT = ("name=new", "train.max_steps=1", "eval.every=0", "eval.attention.every=0")


@pytest.mark.parametrize(
    ("file", "options", "is_trusted"),
    [
        ("runs/tiny/config.yaml", (), False),
        ("extends.yaml", (), False),
        ("../elsewhere/demo.yaml", (), False),
        ("runs/tiny/config.yaml", ("--trust-hooks",), True),
        ("runs/tiny/config.yaml", ("eval.hooks=[payload:look]",), True),
        ("mine.yaml", (), True),
    ],
)
def test_code_is_imported_only_where_the_user_named_it(tmp_path, monkeypatch, file, options, is_trusted):
    work = tmp_path / "work"
    run, hooks = trained(work), CONFIG | {"eval": CONFIG["eval"] | {"hooks": ["payload:look"]}}
    (work / "payload.py").write_text(MODULE)
    (tmp_path / "elsewhere").mkdir()
    for config in (run / "config.yaml", work / "mine.yaml", tmp_path / "elsewhere/demo.yaml"):
        config.write_text(json.dumps(hooks))
    (work / "extends.yaml").write_text("extends: runs/tiny/config.yaml\nseed: 3\n")
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    done = run_module("train.pretrain", file, *SHORT, *options)
    assert (work / "IMPORTED").exists() == is_trusted, done.stderr
    assert done.returncode == (0 if is_trusted else 2)
    assert is_trusted or "--trust-hooks" in done.stderr
