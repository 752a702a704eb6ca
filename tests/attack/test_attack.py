"""Attack the boundaries: a command does its work, or refuses in one line with exit code 2.

One test for each boundary: YAML, records and their files, foreign model directories, a damaged
run, requests.
"""

import gzip
import json
import shutil
import unicodedata
from pathlib import Path

import httpx
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from configs.command import InputError
from configs.loader import load_config
from configs.text import INVISIBLE, KEPT
from tests.attack.mutations import damaged, drawn, mutated
from tests.model.files.export_models import model as tiny_model
from tests.model.files.export_models import save_with_tokenizer
from tests.processes import run_module
from tests.serve.conftest import folder as folder
from tests.serve.conftest import serving
from tests.train.helpers import pretrain, write_config
from train.config import load_run_config

SHIPPED = [file.read_bytes() for file in sorted(Path("configs").glob("*.yaml"))]
BASE = load_config("configs/base.yaml").values
TEXT = [{"text": f"{i} die Füße der Katze 猫 sat on mat number {i * 7 % 13}."} for i in range(30)]
CHATS = [
    {"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"It is {i}."}]}
    for i in range(30)
]
PAIRS = [{"prompt": f"What is {i}?", "chosen": f"It is {i}.", "rejected": "I do not know."} for i in range(30)]
DATA = st.data()


def ends_well(module: str, *arguments) -> None:
    """The command ends with exit code 0, or with 2 and one last line that says what is wrong."""
    done = run_module(module, *arguments)
    said = done.stderr.splitlines()
    assert done.returncode in (0, 2), said[-1:]
    assert done.returncode == 0 or said[-1].startswith("error: "), said
    hidden = {c for c in done.stdout + done.stderr if unicodedata.category(c) in INVISIBLE}
    assert hidden <= set(KEPT) | {"\r", "\x1b"}  # a progress bar on stderr moves the cursor


@given(mutated(BASE).map(json.dumps).map(str.encode) | st.sampled_from(SHIPPED).flatmap(damaged))
@drawn(150)
def test_any_config_is_read_or_refused_in_one_line(tmp_path, raw):
    (tmp_path / "x.yaml").write_bytes(raw)
    problem = ""
    try:
        load_run_config(tmp_path / "x.yaml")
    except InputError as error:
        problem = str(error)
    assert "\n" not in problem


def prepared(folder: Path, file: Path, records: str = "text", *overrides: str) -> None:
    """Assert that the records of this file are prepared, or refused."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    data = {"source": {"kind": "files", "path": str(file)}, "records": records}
    ends_well("data.prepare", write_config(folder, data=data), *overrides)


@pytest.mark.parametrize(("kind", "records"), [("text", TEXT), ("conversations", CHATS), ("pairs", PAIRS)])
@given(DATA, st.integers(0, 29), st.sampled_from(["stop", "skip"]))
@drawn(30)
def test_any_record_is_prepared_or_refused_in_one_line(tmp_path, kind, records, data, at, on_bad_record):
    changed = [*records[:at], data.draw(mutated(records[at])), *records[at + 1 :]]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed), encoding="utf-8")
    prepared(tmp_path, tmp_path / "data.jsonl", kind, f"data.on_bad_record={on_bad_record}")


def in_bytes(kind: str) -> bytes:
    """The texts in a file of this kind."""
    lines = [record["text"] for record in TEXT]
    jsonl = "".join(json.dumps(record) + "\n" for record in TEXT)
    if kind == "parquet":
        parquet.write_table(pyarrow.table({"text": lines}), buffer := pyarrow.BufferOutputStream())
        return buffer.getvalue().to_pybytes()
    if kind == "jsonl.gz":
        return gzip.compress(jsonl.encode(), mtime=0)
    return {"txt": "\n\n".join(lines), "jsonl": jsonl, "json": json.dumps(TEXT), "csv": "\n".join(["text", *lines])}[
        kind
    ].encode()


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv", "parquet", "jsonl.gz"])
@given(DATA)
@drawn(15)
def test_any_file_of_text_is_prepared_or_refused_in_one_line(tmp_path, kind, data):
    file = tmp_path / f"data.{kind}"
    file.write_bytes(data.draw(damaged(in_bytes(kind))))
    prepared(tmp_path, file)


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_any_model_directory_is_opened_or_refused_in_one_line(tmp_path, name, count):
    raw = (save_with_tokenizer(tiny_model(), tmp_path / "model") / name).read_bytes()
    wrong = damaged(raw)
    if name.endswith(".json"):
        wrong |= mutated(json.loads(raw)).map(json.dumps).map(str.encode)

    @given(wrong)
    @drawn(count)
    def opened(content):
        (tmp_path / "model" / name).write_bytes(content)
        ends_well("eval.samples", tmp_path / "model", "a", "--max-new-tokens", "2", "--device", "cpu")

    opened()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The config of a finished run of four steps."""
    attention = {"every": 2, "max_tokens": 8}
    config = write_config(
        tmp_path_factory.mktemp("trained"),
        train={"max_steps": 4, "tokens_per_step": 128, "checkpoint_every": 2, "keep_last": 2, "processes": 1},
        eval={"every": 2, "sample_tokens": 8, "prompts": ["Füße 猫 "], "attention": attention},
    )
    pretrain(config)
    return config


@given(DATA)
@drawn(15)
def test_a_damaged_run_continues_or_is_refused_in_one_line(trained, tmp_path, data):
    """Its own files are trusted once their checksum is right: what is wrong is found before
    anything is lost.
    """
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    run = shutil.copytree(trained.parent / "runs", tmp_path / "runs") / "tiny"
    ours = (".json", ".jsonl", ".safetensors", ".yaml")
    file = data.draw(st.sampled_from(sorted(file for file in run.rglob("*") if file.suffix in ours)))
    file.write_bytes(data.draw(damaged(file.read_bytes())))
    before = {path: path.read_bytes() for path in run.glob("checkpoints/*/model.safetensors")}
    done = run_module("train.pretrain", trained, f"output_dir={run.parent}", "train.max_steps=6", "eval.hooks=[]")
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
BODIES = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"model": "text", "prompt": "A", "max_tokens": 2, "logprobs": 1, "echo": True},
    "/live/models/chat/attention": {"ids": [1, 2], "position": 1, "step": 10, "heads": [[0, 0, 0]]},
}


def test_any_request_is_answered(folder):
    """Never with a fault of the server: with an answer, or with what is wrong with the request."""
    with serving(folder) as (address, _), httpx.Client(timeout=60) as client:

        @given(DATA, st.sampled_from([*BODIES]), st.integers(0, 4))
        @drawn(80)
        def request(data, path, kind):
            raw = json.dumps(data.draw(mutated(BODIES[path]))).encode()
            body = raw if kind else data.draw(damaged(raw))
            answer = client.post(address + path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500, answer.text
            assert answer.status_code < 400 or answer.json()["error"]["message"]

        request()


@pytest.mark.parametrize(
    ("file", "overrides", "is_trusted"),
    [
        ("mine.yaml", [], True),
        ("runs/tiny/config.yaml", [], False),
        ("runs/tiny/config.yaml", ["eval.hooks=[payload:look]"], True),
        ("attention/config.yaml", [], False),
        ("extends.yaml", [], False),
        ("../elsewhere/demo.yaml", [], False),
    ],
)
def test_a_config_names_code_to_run_only_where_the_user_wrote_it(tmp_path, monkeypatch, file, overrides, is_trusted):
    for name in ("work/mine.yaml", "work/runs/tiny/config.yaml", "elsewhere/demo.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("eval: {hooks: ['payload:look']}\n")
    (tmp_path / "work/attention").mkdir()
    mine = "model: {attn_implementation: mine, my_attention: mine.py}\n"
    (tmp_path / "work/attention/config.yaml").write_text(mine)
    (tmp_path / "work/extends.yaml").write_text("extends: runs/tiny/config.yaml\nseed: 3\n")
    monkeypatch.chdir(tmp_path / "work")
    if is_trusted:
        load_run_config(file, overrides, trust_hooks=False)
    else:
        with pytest.raises(InputError, match="--trust-hooks"):
            load_run_config(file, overrides, trust_hooks=False)
