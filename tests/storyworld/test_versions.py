"""A change of the stories, or of the encoding of conversations, needs a new version.

Prepared data and runs are identified by these versions, not by the bytes of the source code.
"""

import hashlib
import json

from data.chat import encode_conversations, prompt_ids
from data.chat_template import CHAT_TEMPLATE_DIGESTS, CHAT_TEMPLATE_VERSION
from data.config import RecallDocuments, TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from storyworld import (
    DRILLS,
    STORYWORLD_DIGESTS,
    STORYWORLD_VERSION,
    converse,
    draw_question,
    interview,
    questions_about,
    recall,
    repeated,
    say_again,
    tell,
)

SPLITS = ("train", "validation")


def digest(made) -> str:
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def story(split, level, index, **options):
    told = tell(3, index, split, level, **options)
    questions = [[question.text, question.answer] for question in questions_about(told)]
    return [told.text, round(told.bits, 9), [[fact.at, fact.kind] for fact in told.facts], questions]


def sample_of_the_world() -> list:
    """A little of everything that a corpus, a probe or an evaluation takes from the world."""
    stories = [story(split, level, i) for split in SPLITS for level in (1, 2) for i in range(20)]
    held_out_names = [story("validation", 2, i, held_out_names=True) for i in range(5)]
    chats = [converse(3, i, split, level) for split in SPLITS for level in (1, 2) for i in range(10)]
    chats += [interview(3, i) for i in range(5)]
    chats += [interview(3, i, told=1.0, echoed=1.0) for i in range(5)]
    drills = (*(DRILLS[name] for name in sorted(DRILLS)), say_again)
    chats += [drill(3, i, split) for drill in drills for split in SPLITS for i in range(5)]
    questions = [draw_question(3, i, "validation", level)[1] for level in (1, 2) for i in range(14)]
    repeats = [repeated(3, i, words=range(4, 41), held_out=held_out).text for i in range(5) for held_out in (0, 1)]
    facts = [recall(3, i, RecallDocuments(facets=3), held_out).text for i in range(5) for held_out in (False, True)]
    return [stories, held_out_names, chats, [[one.text, one.answer] for one in questions], repeats, facts]


def sample_of_chats() -> list:
    """A conversation of every shape, and a prompt of each kind, as ids."""
    tools = [{"name": "add", "description": "a + b", "parameters": {"type": "object"}}]
    call = {"name": "add", "arguments": {"a": 1, "é": "2"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is <|im_end|> 1 + 2?\n"},
        {"role": "assistant", "content": "Let me add.", "reasoning_content": "Hm.\nAdd.", "tool_calls": [call, call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "assistant", "content": "Is it?\n</think>\n\nSo."},
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": ""},
    ]
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    some = [{"messages": messages}, {"messages": messages, "tools": tools}, {"messages": messages[1:], "tools": tools}]
    encoded = encode_conversations(tokenizer, [conversation_of(record) for record in some])
    prompts = [prompt_ids(tokenizer, messages[:2], tools, enable_thinking=thinking) for thinking in (False, True)]
    return [[ids, flags.tolist()] for ids, flags in encoded] + prompts


def test_the_stories_are_those_of_their_version():
    found = digest(sample_of_the_world())
    assert STORYWORLD_DIGESTS.get(STORYWORLD_VERSION) == found, (
        f"the world tells other stories: in storyworld/__init__.py raise STORYWORLD_VERSION and add {found!r}"
    )


def test_conversations_are_encoded_as_in_their_version():
    found = digest(sample_of_chats())
    assert CHAT_TEMPLATE_DIGESTS.get(CHAT_TEMPLATE_VERSION) == found, (
        f"conversations get other ids: in data/chat_template.py raise CHAT_TEMPLATE_VERSION and add {found!r}"
    )
