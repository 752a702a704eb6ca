"""A conversation: the cache changes what is computed and nothing else, and its ids are those of
training.
"""

from contextlib import closing

import pytest
import torch

from configs.files import append_line
from data.chat import TRAINED, encode_conversations, ids_after_answer, prompt_ids
from data.config import TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from eval.chat.session import Conversation, first_line
from model import LanguageModel, generate
from model.generation import Sampling
from tests.conftest import random_model, tiny_config
from tests.eval import scoring

CHAT = [2, 5]
TEXT = 2  # eos_token_id of a run that was trained on chats, and on texts
SAID = ("Who has the kite?", "And the 球?", "Who has nothing?")
ANSWERS = ("Tiko has the kite.", "贝尔娜 has it 🦊.", "")
TEXTS = [text for pair in zip(SAID, ANSWERS, strict=True) for text in pair]
MESSAGES = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 3, TEXTS, strict=True)]
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.fixture(scope="module")
def tokenizer():
    # others take several tokens
    ascii_only = [text.encode("ascii", "ignore").decode() for text in TEXTS]
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), ascii_only * 9)


def learned(vocab_size: int, ids: list[int], trained: list[bool], ends) -> LanguageModel:
    """A model that knows one row of tokens."""
    fields = {"vocab_size": vocab_size, "max_position_embeddings": 256, "hidden_size": 64, "eos_token_id": ends}
    return scoring.learned(tiny_config(**fields), [(ids, trained)], steps=60, lr=1e-2)


def random_conversation(tokenizer, ends=CHAT, **changes) -> Conversation:
    """With a model that never ends by itself, so that its answers are max_new_tokens long."""
    fields = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 256, "eos_token_id": ends}
    lm = random_model(tiny_config(**(fields | changes)))
    with torch.no_grad():
        # their logits are 0; of 300 others, some are larger
        lm.lm_head.weight[list(tokenizer.special_ids)] = 0
    return Conversation(lm, tokenizer, temperature=0.0, max_new_tokens=12)


def without_cache(conversation: Conversation) -> list[int]:
    """The greedy answer to what the model saw last, with everything read anew at each token."""
    last = conversation.last
    stops = conversation.tokenizer.stop_ids
    ids = torch.tensor([last.ids[: last.begin]])
    most = conversation.max_new_tokens
    answer = generate(conversation.lm, ids, most, temperature=0.0, stop_ids=stops, kv_cache=None)
    return [token for token in answer[0, last.begin :].tolist() if token not in stops]


def sizes_read(conversation: Conversation) -> list[int]:
    """A list to which every forward pass adds the number of its tokens."""
    sizes = []
    conversation.lm.model.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[1]))
    return sizes


@pytest.mark.parametrize("changes", [{}, WINDOWS, {"num_key_value_heads": 1}], ids=["gqa", "windows", "mqa"])
def test_a_turn_is_prompted_as_training_has_it_and_answered_as_without_a_cache(tokenizer, changes):
    conversation = random_conversation(tokenizer, **changes)
    messages = [{"role": "system", "content": "Be brief."}]
    conversation.set_system("Be brief.")
    for text in (*SAID, "Tiko?"):
        messages.append({"role": "user", "content": text})
        said = "".join(conversation.answer(text))
        last = conversation.last
        answer = last.ids[last.begin :]
        assert last.ids[: last.begin] == prompt_ids(tokenizer, messages)
        assert len(answer) == 12
        assert said == tokenizer.decode(answer)
        assert answer == without_cache(conversation)
        assert conversation.cache.length == len(last.ids) - 1
        messages.append({"role": "assistant", "content": said})


def test_a_turn_reads_only_its_new_tokens_and_the_ids_are_those_of_training(tokenizer):
    ((ids, flags),) = encode_conversations(tokenizer, [conversation_of({"messages": MESSAGES})])
    lm = learned(tokenizer.vocab_size, ids, (flags & TRAINED).astype(bool), CHAT)
    conversation = Conversation(lm, tokenizer, temperature=0.0)
    sizes = sizes_read(conversation)
    seen = 0
    for text, answer in zip(SAID, ANSWERS, strict=True):
        sizes.clear()
        assert "".join(conversation.answer(text)) == answer
        assert sizes[0] == conversation.last.begin - seen
        # the last token, too, was read: the end of the turn followed
        seen = len(conversation.last.ids)
    assert [conversation.last.ended, conversation.last.begin] == ["", len(conversation.last.ids)]
    assert [*conversation.last.ids, *ids_after_answer(tokenizer)] == ids


def test_an_answer_that_is_stopped_is_a_turn(tokenizer):
    conversation = random_conversation(tokenizer)
    with closing(conversation.answer(SAID[0])) as pieces:
        said = next(pieces)
    last = conversation.last
    assert last.ended == "stopped"
    assert 1 <= len(last.ids) - last.begin < 12
    sizes = sizes_read(conversation)
    list(conversation.answer(SAID[1]))
    assert f"{said}<|im_end|>" in tokenizer.decode(conversation.last.ids, False)
    assert sizes[0] <= conversation.last.begin - last.begin  # the first prompt was not read again
    assert conversation.last.ids[conversation.last.begin :] == without_cache(conversation)


@pytest.mark.parametrize("changes", [{}, WINDOWS], ids=["full", "windows"])
def test_the_oldest_turns_go_when_the_context_is_full(tokenizer, changes):
    conversation = random_conversation(tokenizer, max_position_embeddings=128, **changes)
    conversation.set_system("Be brief.")
    forgotten = 0
    before = []
    for number in range(12):
        list(conversation.answer(f"Who has {number}?"))
        last = conversation.last
        forgotten = forgotten + conversation.forgotten
        assert "Be brief." in tokenizer.decode(last.ids[: last.begin])
        assert conversation.turns[-2:-1] == before  # what was said just now is still there
        before = conversation.turns[-1:]
        assert last.begin + 12 == len(last.ids) <= 128  # there was room for the answer
        assert last.ids[last.begin :] == without_cache(conversation)
    assert forgotten == 12 - len(conversation.turns) > 3
    conversation.reset()
    conversation.max_new_tokens = 500
    list(conversation.answer("Who?"))
    assert (conversation.last.ended, len(conversation.last.ids)) == ("full", 128)


def test_the_same_seed_gives_the_same_answers_and_a_question_asked_twice_two(tokenizer):
    conversation = random_conversation(tokenizer)
    conversation.sampling = Sampling(1.0)

    def asked_twice():
        conversation.reset()
        return ["".join(conversation.answer("Who?")) for _ in range(2)]

    first = asked_twice()
    assert first[0] != first[1]
    assert asked_twice() == first
    conversation.seed = 1000
    assert asked_twice() != first


def test_a_model_without_chats_continues_the_text(tokenizer):
    conversation = random_conversation(tokenizer, ends=TEXT)
    first = "".join(conversation.answer("Who has"))
    last = conversation.last
    assert last.ids[: last.begin] == [tokenizer.bos_id, *tokenizer.encode("Who has")]
    list(conversation.answer("the kite?"))
    between = " the kite?" if first[-1].isascii() and not first[-1].isspace() else "the kite?"
    read = conversation.last.ids[: conversation.last.begin]
    assert read == [tokenizer.bos_id, *tokenizer.encode(f"Who has{first}{between}")]
    with pytest.raises(ValueError, match="trained on texts"):
        conversation.set_system("Be brief.")


def test_where_a_document_ends_the_next_line_begins_a_new_one(tokenizer):
    ((*ids, end),) = tokenizer.encode_documents([ANSWERS[0]])
    lm = learned(tokenizer.vocab_size, [*ids, end], [True] * (len(ids) + 1), TEXT)
    conversation = Conversation(lm, tokenizer, temperature=0.0)
    for _ in range(2):
        assert "".join(conversation.answer("Tiko")) == ANSWERS[0].removeprefix("Tiko")
        assert conversation.last.ended == ""
        assert conversation.last.ids == ids


def test_a_first_line_from_the_runs_own_world(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert first_line(tmp_path) == ""
    append_line(tmp_path / "samples.jsonl", {"step": 10, "prompt": "", "text": "What do you give to two friends?"})
    assert first_line(tmp_path) == "What do you give to two"
