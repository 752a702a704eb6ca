"""The choice of a backend: explicit means explicit, auto says why, and what cannot serve is refused
first.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.backends.choice import BACKENDS, Situation, choose_attention, why_not
from tests.conftest import random_model, tiny_config
from tests.train.helpers import metrics, write_config
from train.config import load_run_config
from train.machine.device import resolve_device

HALF = torch.bfloat16
ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"


@pytest.mark.parametrize(
    ("name", "situation", "reason"),
    [
        ("flash", Situation("cpu", torch.float32, 64, dropout=0.1), "has no dropout"),
        ("flash", Situation("cpu", torch.float32, 64, value_dim=32), "takes values as large as keys"),
        ("flash", Situation("cuda", torch.float32, 64), "computes in 16 bits only"),
        ("flash", Situation("cuda", HALF, 320), "heads of at most 256, not 320"),
        ("flash", Situation("cuda", HALF, 64, documents=True, dropout=0.1), "has no dropout with documents"),
        ("flash", Situation("mps", HALF, 64), "no kernel on mps"),
        ("flex", Situation("cpu", torch.float32, 64, gradients=True), "no gradients on CPU"),
        ("flex", Situation("cuda", HALF, 64, dropout=0.1), "no dropout"),
        ("flex", Situation("cuda", torch.float32, 64, compiled=True), "on a GPU in float32, compiled"),
        ("blocked", Situation("cuda", HALF, 64), "is for CPUs"),
        ("blocked", Situation("cpu", HALF, 64, dropout=0.1), "no dropout"),
        ("blocked", Situation("cpu", torch.float16, 64, gradients=True), "does not train in float16"),
        ("varlen", Situation("cpu", HALF, 64), "needs CUDA"),
        ("varlen", Situation("cuda", HALF, 64, dropout=0.1), "has no dropout"),
    ],
)
def test_what_cannot_serve_says_why(name, situation, reason):
    assert reason in (why_not(name, situation) or "")


def test_a_gpu_of_another_generation_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert "of compute capability 7" in (why_not("flash", Situation("cuda", HALF, 64)) or "")


def situations(run, device: str) -> list[Situation]:
    """Return the situations of a run of this config: training, evaluation, every cache."""
    model = run.model
    alone = Situation.of(model, device, HALF)
    packed = replace(alone, documents=run.data.isolate_documents)
    training = [replace(packed, gradients=True, dropout=model.attention_dropout, compiled=c) for c in (False, True)]
    prompts = [replace(alone, padding=padding) for padding in (False, True)]
    return [*training, packed, replace(packed, padding=True), *prompts, *(replace(p, compiled=True) for p in prompts)]


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "flash"])
def test_nothing_in_a_run_of_a_shipped_config_is_refused(backend, config):
    run = load_run_config(config)
    for device in ("cpu", "cuda"):
        for here in situations(run, device):
            assert why_not(backend, here) is None, here


@pytest.mark.parametrize(
    ("name", "message"), [("varlen", "needs CUDA"), ("flex", "has no gradients on CPU"), ("flash", "has no dropout")]
)
def test_a_model_refuses_before_it_computes(name, message):
    dropout = 0.1 if name == "flash" else 0.0
    lm = random_model(tiny_config(attention_dropout=dropout, attn_implementation=name)).train()
    lm.model.embed_tokens.register_forward_hook(lambda *_: pytest.fail("something was computed"))
    with pytest.raises(ValueError, match=f"attn_implementation: {name} {message}"):
        lm(torch.randint(0, 192, (1, 8)))


def test_an_unknown_name_lists_those_that_there_are():
    lm = random_model(tiny_config())
    with pytest.raises(ValueError, match="'flashy'.* auto, eager, flash, flex, "):
        lm.set_attn_implementation("flashy")
    assert lm.attn_implementation == "sdpa"


def test_auto_on_a_cpu_trains_in_blocks_where_that_can_serve():
    assert choose_attention(Situation("cpu", torch.float32, 64)) == ("sdpa", "PyTorch picks its kernel")
    here = Situation("cpu", HALF, 64, gradients=True, documents=True, compiled=True)
    assert choose_attention(here)[0] == choose_attention(replace(here, dtype=torch.float32))[0] == "blocked"
    for changes in ({"dropout": 0.1}, {"dtype": torch.float16}, {"gradients": False}, {"device": "mps"}):
        assert choose_attention(replace(here, **changes))[0] == "sdpa", changes


def test_auto_on_a_gpu_takes_the_first_that_can_serve_and_says_what_it_skipped():
    packed = Situation("cuda", HALF, 64, gradients=True, documents=True)
    assert choose_attention(packed)[0] == "flash"
    backend, reason = choose_attention(replace(packed, head_dim=320))
    assert backend == "flex"
    assert "not flash: takes heads of at most 256" in reason
    assert choose_attention(replace(packed, documents=False))[0] == "sdpa"
    assert choose_attention(replace(packed, dtype=torch.float32))[0] == "sdpa"


# --------------------------------------------------------------------------------------------------
# the seam: a function and an entry in BACKENDS is all that a new backend needs

NEW = """
import sys
from model.attention import eager
from model.backends.choice import BACKENDS, Backend
from train.config import RunConfig
from train.pretrain import main

calls = []

def doubled(q, k, v, mask, dropout):
    calls.append(q.shape)
    return 2 * eager(q, k, v, mask, dropout)

BACKENDS["doubled"] = Backend(doubled)
code = main()
field = RunConfig.model_json_schema()["$defs"]["ModelConfig"]["properties"]["attn_implementation"]
print("called:", len(calls) > 0)
print("schema:", field["enum"])
sys.exit(code)
"""


def test_a_backend_that_is_registered_trains_and_is_in_the_schema(tmp_path):
    file = tmp_path / "new_backend.py"
    file.write_text(NEW)
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0})
    command = [sys.executable, file, config, "train.processes=1", "model.attn_implementation="]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def train(name: str) -> subprocess.CompletedProcess:
        arguments = [*command[:-1], command[-1] + name]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, cwd=ROOT)

    done = train("doubled")
    assert done.returncode == 0, done.stderr
    assert "attention doubled (asked for)" in done.stdout
    assert "called: True" in done.stdout
    assert f"schema: {['auto', *BACKENDS, 'doubled']}" in done.stdout
    assert len(metrics(tmp_path / "runs/tiny", "train")) == 2
    refused = train("doubld")
    assert refused.returncode != 0
    assert "'mine' or 'doubled'" in refused.stderr


def test_a_run_whose_backend_is_no_longer_registered_resumes_with_another(tmp_path):
    config = load_run_config(write_config(tmp_path))
    begun = {"device": "cpu", "attention": "gone"}
    assert resolve_device(config, begun).attention == "blocked"
