"""Rollouts with tools: what they wrote is read and not trained on, as in TRL, and a stopped run
goes on exactly.
"""

import json
from types import SimpleNamespace

import pytest
import torch

from configs import IGNORED
from configs.files import checkpoint_directory
from data.chat import prompt_ids
from data.reply import read_reply
from eval.tools import MOST_CALLS, SCHEMAS, answers, respond, write_answers
from eval.tools.sums import sums_chat
from tests.train.grpo_helpers import grpo_config, opened, rollouts
from tests.train.helpers import check_exact_resume, metrics, pretrain, write_config
from train import grpo

LENGTH = 192  # of a row


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that has seen sums for seconds: it calls, and its numbers are wrong."""
    folder = tmp_path_factory.mktemp("tools") / "folder"
    folder.mkdir()
    chats = folder / "sums.jsonl"
    chats.write_text("".join(json.dumps(sums_chat(0, index, 1.0)) + "\n" for index in range(400)), encoding="utf-8")
    data = {"source": {"kind": "files", "path": str(chats)}, "records": "conversations", "sequence_length": LENGTH}
    data |= {"tokenizer": {"kind": "bpe", "vocab_size": 448}, "isolate_documents": True, "rows_joined": 1}
    model = {"max_position_embeddings": LENGTH}
    train = {"max_steps": 80, "tokens_per_step": 8 * LENGTH, "checkpoint_every": 0}
    pretrain(write_config(folder, name="sums", data=data, model=model, train=train, eval={"hooks": []}))
    return folder / "runs/sums"


def settings(run, **sections):
    data = {"source": {"kind": "files", "path": str(run.parent.parent / "sums.jsonl")}, "sequence_length": LENGTH}
    given = {"tools": ["calculator"], "max_new_tokens": 80} | sections.pop("grpo", {})
    train = {"tokens_per_step": 8 * LENGTH} | sections.pop("train", {})
    return grpo_config(run, grpo=given, data=data, train=train, **sections)


def source_of(run, **given):
    return rollouts(run, settings(run, grpo=given))


def test_tools_are_described_and_called_and_what_they_return_is_no_label(run):
    lm, tokenizer = opened(run)
    (_, with_one), (_, without) = source_of(run), source_of(run, tools=[])
    question, prompt = with_one.question(0, 0)
    # its own tools
    assert prompt == without.question(0, 0)[1] == prompt_ids(tokenizer, question.messages, SCHEMAS)
    begin = tokenizer.special_id("<tool_response>")
    for source, called in ((with_one, True), (without, False)):
        batch = source.batch(0, lm)
        responses = batch["input_ids"] == begin
        assert bool(responses.any()) == called
        assert (batch["labels"][responses] == IGNORED).all()
        assert (batch["drawn_log_probs"][batch["labels"] == IGNORED] == 0).all()
        assert (batch["weights"][batch["labels"] == IGNORED] == 0).all()
        assert batch["weights"].sum() == pytest.approx(float(batch["copies"].sum()))
        assert len(batch.figures) == (6 if called else 4)


@pytest.mark.slow  # TRL takes seconds to import
def test_sequence_and_mask_are_those_of_trls_tool_loop(run, monkeypatch):
    """TRL's own `_tool_call_loop`, with the same turns of the model: an error, a call, a long one,
    and answers.
    """
    transformers = pytest.importorskip("transformers")
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    tokenizer = opened(run)[1]
    prompts = [prompt_ids(tokenizer, [{"role": "user", "content": text}], SCHEMAS) for text in ("6 * 7?", "What is 1?")]
    end = tokenizer.special_id("<|im_end|>")
    room = 160
    arguments = ({"expression": text} for text in ("6 * 7", "1 / 0", "9 - 8"))
    calls = [json.dumps({"name": "calculator", "arguments": one}) for one in arguments]

    def turn(call=None, text=""):
        inner = []
        if call is not None:
            marks = [tokenizer.special_id(token) for token in ("<tool_call>", "</tool_call>")]
            inner = [marks[0], *tokenizer.encode(f"\n{call}\n"), marks[1]]
        return [*tokenizer.encode(text), *inner, end]

    scripts = [[turn(calls[0]), turn(text="It is 42.")], [turn(calls[1]), turn(calls[2]), turn(text="It is 1. " * 40)]]
    written = iter([[scripts[0][0], scripts[1][0]], [scripts[0][1], scripts[1][1]], [scripts[1][2]]])

    def generate(lm, ids, max_new_tokens, log_probs, **_):
        turns = [one[:max_new_tokens] for one in next(written)]
        longest = max(map(len, turns))
        new = torch.tensor([one + [end] * (longest - len(one)) for one in turns])
        log_probs += torch.full(new.shape, -0.5).unbind(dim=1)
        return torch.cat([ids, new], dim=1)

    monkeypatch.setattr(answers, "generate", generate)
    lm = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=10_000), device=torch.device("cpu"))
    drawing = {"max_new_tokens": room, "tools": True}
    ours = write_answers(lm, tokenizer, prompts, **drawing)

    def parsed(_, ids, **__):
        found = [respond(call) for call in read_reply(tokenizer, ids, tools=True).calls]
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"response": " ".join(found)}}}
        return {"role": "assistant", "content": "", **({"tool_calls": [call]} if found else {})}

    monkeypatch.setattr(trainer, "parse_response", parsed)
    theirs = transformers.AutoTokenizer.from_pretrained(checkpoint_directory(run))
    rest = iter([[scripts[0][1], scripts[1][1]], [scripts[1][2]]])
    tools = {"calculator": lambda response: response}
    stub = SimpleNamespace(
        **{"_sync_tool_dicts": [tools] * 2, "_async_tool_dicts": [{}] * 2, "max_tool_calling_iterations": MOST_CALLS},
        **{"_is_vlm": False, "use_vllm": False, "environment_factories": None, "tools": []},
        **{"_tokenizer": SimpleNamespace(eos_token_id=end), "processing_class": theirs, "chat_template": None},
        **{"chat_template_kwargs": {}, "max_completion_length": room, "model": lm},
        _generate_single_turn=lambda ids, *_, **__: ((turns := next(rest)), [[-0.5] * len(one) for one in turns]),
    )
    stub._get_tool_suffix_ids = lambda messages: trainer.GRPOTrainer._get_tool_suffix_ids(stub, messages)
    first = [script[0] for script in scripts]
    mask, _, ids, log_probs, count, _, _ = trainer.GRPOTrainer._tool_call_loop(
        stub,
        *([[{"role": "user", "content": "?"}] for _ in prompts], prompts, list(first)),
        *([[parsed(None, one)] for one in first], [[-0.5] * len(one) for one in first], None, {}),
    )
    assert [answer.ids for answer in ours] == ids
    assert [answer.own for answer in ours] == [list(map(bool, row)) for row in mask]
    assert [answer.log_probs for answer in ours] == log_probs
    assert [sum(answer.calls for answer in ours), count] == [3, 3]
    assert [answer.errors for answer in ours] == [0, 1]
    assert len(ours[1].ids) == room


def test_a_run_with_tools_goes_on_exactly_after_a_stop(run, tmp_path):
    config = settings(run, output_dir=str(tmp_path), train={"trace": True, "max_steps": 4, "checkpoint_every": 2})
    whole = check_exact_resume(config, grpo.main, step=2)
    lines = metrics(whole, "train")
    assert lines[0]["tool_calls"] > 0
    assert lines[0]["tool_errors"] <= lines[0]["tool_calls"] <= MOST_CALLS
