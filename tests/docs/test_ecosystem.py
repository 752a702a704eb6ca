"""docs/ecosystem.md: the lines that this machine can run do what the page says."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from configs.files import read_json
from data import load_tokenizer
from eval.attention import capture
from eval.tasks import ChoiceRecord, figures, read_questions, score
from model import load
from model.export import export
from tests.docs.checks import ROOT
from tests.model.files.export_models import model, save_with_tokenizer
from tests.serve.conftest import serving

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs/ecosystem.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def code(section: str) -> str:
    """The lines of Python of a section or, where it has none, its commands."""
    blocks = re.findall(r"^```(python)?\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return "\n".join([text for language, text in blocks if language] or [text for _, text in blocks])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """demo-hub, in a folder of its own."""
    export(save_with_tokenizer(model(), tmp_path / "model"), "hub-folder", tmp_path / "demo-hub")
    monkeypatch.chdir(tmp_path)
    return Path("demo-hub")


def test_transformers_peft_and_trl(hub, capsys):
    exec(code("transformers"), {})
    assert capsys.readouterr().out.startswith("<|bos|>Once there was a fox")
    exec(code("peft"), {})
    ids = torch.randint(0, 300, (1, 9))
    with torch.no_grad():
        assert torch.equal(load("demo-lora")(ids), load(hub)(ids))  # B is zero before training
    exec(code("trl"), {})
    assert not torch.equal(load("demo-trl").lm_head.weight, load(hub).lm_head.weight)


@pytest.mark.parametrize("program", ["TransformerLens", "nnsight", "BertViz", "CircuitsVis"])
def test_tools_that_look_inside_see_what_we_see(hub, program):
    pytest.importorskip({"TransformerLens": "transformer_lens"}.get(program, program.lower()))
    # nnsight reads the lines again from their file
    Path("lines.py").write_text(code(program), encoding="utf-8")
    found = runpy.run_path("lines.py")
    lm = load(hub)
    ids = found["ids"]
    assert ids[0, 0] == load_tokenizer(hub).bos_id

    def same(theirs, ours):
        # other kernels, in float32
        torch.testing.assert_close(theirs.detach(), ours, rtol=0, atol=1e-5)

    with torch.no_grad():
        if "logits" in found:
            same(found["logits"], lm(ids))
        if "patterns" in found:
            same(torch.stack(list(found["patterns"])), capture(lm, ids).weights)
        if "page" in found:
            assert "<script" in str(getattr(found["page"], "data", found["page"]))
        if "without" in found:
            size = lm.config.head_size
            lm.model.layers[0].self_attn.o_proj.weight[:, size : 2 * size] = 0
            same(found["without"], lm(ids))


def test_lm_evaluation_harness_counts_as_eval_tasks_does(hub):
    """From the directory, and asked over HTTP."""
    pytest.importorskip("lm_eval")
    contexts = ("The fox saw the", "Once there was a", "A dog barked and the", "It's 2026 and the", "Two")
    endings = ["bird flew away.", "fox ran.", "two red apples."]
    questions = [{"ctx": text, "endings": endings, "label": n % 3} for n, text in enumerate(contexts)]
    pairs = [{"sentence_good": f"A fox {verb}s.", "sentence_bad": f"A fox {verb}."} for verb in ("sing", "run", "bark")]
    for name, rows in (("questions", questions), ("pairs", pairs)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(hub, "runs/demo/checkpoints/step_00000001")
    Path("runs/demo/checkpoints/latest").write_text("step_00000001\n")
    commands = code("lm-evaluation-harness").replace("eval/lm_eval", str(ROOT / "eval/lm_eval"))
    scores = []
    with serving(Path("runs")) as (address, _):
        for out, command in enumerate(commands.replace("http://127.0.0.1:8000", address).split("\n\n")):
            command = [sys.executable, "-m", *shlex.split(command), "--log_samples", "--output_path", str(out)]
            subprocess.run(command, check=True, timeout=300)
            files = sorted(Path(str(out)).rglob("samples_*.jsonl"))
            samples = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
            scores.append([float(score) for sample in samples for score, _ in sample["filtered_resps"]])
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    (file,) = Path("0").rglob("results_*.json")
    theirs, (read,) = read_json(file)["results"], read_questions(Path("questions.jsonl"), ChoiceRecord).values()
    ours = figures(read, score(load(hub), load_tokenizer(hub), read))
    assert theirs["headlight_multiple_choice"]["acc,none"] == ours["acc"]
    assert 0 <= theirs["headlight_minimal_pairs"]["acc,none"] <= 1


def test_onnx(hub):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    exec(code("ONNX"), {})
    session = onnxruntime.InferenceSession("demo.onnx")
    ids = torch.randint(0, 300, (3, 14))
    found = torch.from_numpy(session.run(None, {"input_ids": ids.numpy()})[0])
    with torch.no_grad():
        assert (found - load(hub)(ids)).abs().max() < 1e-3  # other kernels add up in another order
