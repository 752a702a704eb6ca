"""Encode conversations with flags for training, and prompts.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~      trained on

A chat template renders the text, which is encoded once. Training uses chat_template.jinja, and
prompts use the template of the model.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from data.chat_template import CHAT_TEMPLATE, PRIVATE, ChatTemplate, Piece
from data.reading.messages import BadRecord, Message
from data.reading.pairs import Pair
from data.reading.records import Conversation, checked_conversation
from data.tokenizer import ROLES, SPECIAL_TOKENS, Tokenizer

# Flags of a token: it is a target; a conversation may be cut after it.
TRAINED = 1
MAY_END = 2
OURS = ChatTemplate({"default": CHAT_TEMPLATE}, ROLES, SPECIAL_TOKENS)
THINK = "<think>"


def segments(conversation: Conversation, chat: ChatTemplate = OURS) -> list[Piece]:
    """Render a conversation by our template, which has answers in {% generation %} blocks."""
    answers = [message for message in conversation.messages if message.role == "assistant"]
    result: list[Piece] = []
    before = None
    # only what the assistant wrote has a block, so headers and other roles are never trained on
    for piece in _pieces(chat, conversation):
        # a conversation may be cut after an answer and its line end
        if piece.block is None:
            result.append(piece._replace(flags=0 if before is None else MAY_END))
        else:
            answer = answers[piece.block]
            # parts may have weights of their own, special tokens not
            parts = answer.parts if answer.parts and not piece.special else [(piece.text, 1)]
            for text, weight in parts:
                flags = TRAINED * answer.weight * weight
                result.append(piece._replace(text=text, flags=flags, joint=not answer.parts))
        before = piece.block
    return [piece for piece in result if piece.text]


def _pieces(
    chat: ChatTemplate,
    conversation: Conversation,
    raw_messages: Sequence[Message | dict] = (),
    tools: Sequence[dict] = (),
    **variables: Any,
) -> list[Piece]:
    """Render a conversation. raw_messages, tools: a client's input, with extra fields."""
    tools = tools or conversation.tools
    source = chat.source(tools)
    # If <think> is special, a template cannot see it in a message: thoughts have a field of their
    # own, if the template reads it.
    splits_thoughts = "<think>" in chat.specials and "reasoning_content" in source
    # Most templates need arguments as an object; some join them with +, as text; some take both.
    takes_both = re.search(r"arguments['\"\]]* is (not )?string", source) is not None
    takes_text = not takes_both and re.search(r"arguments['\"\]]* *\+", source) is not None
    messages = []
    raw_messages = raw_messages or conversation.messages
    for message, raw in zip(conversation.messages, raw_messages, strict=True):
        # what the checked message lacks: ids of calls, names, parts
        extra = raw if isinstance(raw, dict) else {}
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        for name in ("name", "tool_call_id"):
            if extra.get(name) is not None:
                fields[name] = extra[name]
        content = extra.get("content")
        if content is not None and not splits_thoughts:
            # as it was sent, with the thoughts in it
            is_text = isinstance(content, str)
            fields["content"] = content if is_text else "".join(part["text"] for part in content)
        if message.reasoning_content and (splits_thoughts or fields["content"] == message.content):
            fields["reasoning_content"] = message.reasoning_content
        calls = []
        for call in message.tool_calls:
            arguments = call["arguments"]
            if isinstance(arguments, str) and not (takes_both or takes_text):
                arguments = json.loads(arguments)
            elif isinstance(arguments, dict) and takes_text:
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append({"type": "function", "function": call | {"arguments": arguments}})
        if isinstance(extra.get("tool_calls"), list):
            for call, own in zip(calls, extra["tool_calls"], strict=True):
                if own.get("id"):
                    call["id"] = own["id"]
        if calls:
            fields["tool_calls"] = calls
        messages.append(fields)

    # prompts end before an answer and after "<think>⏎", so a piece must end there
    result: list[Piece] = []
    for piece in chat.render(messages, tools, **variables):
        has_begun = len(result) > 1 and result[-1].text == THINK and result[-2].block is None
        if has_begun and piece.block is not None and piece.text.startswith("\n"):
            result.append(piece._replace(text="\n"))
            piece = piece._replace(text=piece.text[1:])
        result.append(piece)
    return [piece for piece in result if piece.text]


def encode_conversations(
    tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> list[tuple[list[int], np.ndarray]]:
    """Return (ids, flags) of each conversation. flags: (T,) uint8, of TRAINED and MAY_END."""
    rendered = [segments(conversation, tokenizer.our_chat) for conversation in conversations]
    result = []
    for pieces, (ids, piece_of) in zip(rendered, tokenizer.encode_pieces(rendered), strict=True):
        piece_flags = np.array([piece.flags for piece in pieces], dtype=np.uint8)
        flags = piece_flags[piece_of] & TRAINED  # (T,)
        ends = np.flatnonzero(piece_flags & MAY_END)
        # a conversation may end after the last token of such a piece
        flags[np.searchsorted(piece_of, ends, "right") - 1] |= MAY_END
        result.append((ids.tolist(), flags))
    return result


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], np.ndarray]]:
    """Return (ids, flags) of each pair: of its chosen conversation, then of the rejected one."""
    conversations = []
    for pair in pairs:
        # answers in the common prompt are not trained on
        # both sides have them, so they would cancel in the difference that DPO learns from
        prompt = tuple(replace(m, weight=0) for m in pair.chosen.messages[: pair.shared])
        for side in (pair.chosen, pair.rejected):
            messages = prompt + side.messages[pair.shared :]
            conversations.append(Conversation(messages, side.tools))
    encoded = encode_conversations(tokenizer, conversations)
    result = []
    for chosen, rejected in zip(encoded[::2], encoded[1::2], strict=True):
        result.append((chosen[0] + rejected[0], np.concatenate([chosen[1], rejected[1]])))
    return result


def plain_texts(content: str | Conversation | Pair, flag: int = 0) -> list[str]:
    """Return the texts of a document, without special tokens; of a chat those with the flag."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Conversation):
        pieces = [piece for piece in segments(content) if not piece.special]
        return [piece.text for piece in pieces if piece.flags & flag == flag]
    texts = []
    if not flag:
        # once, though both conversations have it
        prompt = content.chosen.messages[: content.shared]
        texts = plain_texts(Conversation(prompt, content.chosen.tools))
    for side in (content.chosen, content.rejected):
        texts += plain_texts(Conversation(side.messages[content.shared :]), flag)
    return texts


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | dict],
    tools: Sequence[dict] = (),
    continued: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the ids of a conversation up to the assistant's answer.

    - continued: the last message is an answer to continue.
    - variables: for the template; ours has enable_thinking, which begins the thoughts.

    Raises BadRecord; InputError for a model without a template and our special tokens.
    """
    conversation = checked_conversation(messages, tools)
    # with our template, these are exactly the ids before this answer in training
    variables = {"add_generation_prompt": not continued} | variables
    tools = () if isinstance(tools, str) else tools
    pieces = _pieces(tokenizer.chat, conversation, messages, tools, **variables)
    if continued:
        if conversation.messages[-1].role != "assistant" or variables.get("enable_thinking"):
            raise BadRecord("only an answer can be continued, and without enable_thinking")
        end = tokenizer.turn_end and tokenizer.backend.id_to_token(tokenizer.turn_end)
        ends = [i for i, piece in enumerate(pieces) if piece.special and piece.text == end]
        # without the end of its turn
        pieces = pieces[: ends[-1]] if ends else pieces
    return tokenizer.encode_pieces([pieces])[0][0].tolist()


def ids_after_answer(
    tokenizer: Tokenizer, messages: Sequence[dict] = (), **variables: Any
) -> list[int]:
    """Return the ids after an answer: the end of its turn, and these messages. Raises BadRecord."""
    # Rendered with a stand-in for the answer. Its own ids stay as the model wrote them, because
    # its text may have other tokens when it is encoded again.
    answer = f"{PRIVATE}."
    question = {"role": "user", "content": "."}
    messages = [question, {"role": "assistant", "content": answer}, *messages]
    pieces = _pieces(tokenizer.chat, checked_conversation(messages), messages, **variables)
    pieces = [*itertools.dropwhile(lambda piece: answer not in piece.text, pieces)]
    if not pieces:
        raise BadRecord("the chat template leaves answers out")
    pieces[0] = pieces[0]._replace(text=pieces[0].text.partition(answer)[2])
    return tokenizer.encode_pieces([[piece for piece in pieces if piece.text]])[0][0].tolist()
