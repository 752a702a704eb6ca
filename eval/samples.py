"""Continue a prompt: `python -m eval.samples runs/demo "Once upon a time"`"""

import sys

import torch

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
)
from configs.language import translated
from configs.text import escape
from data.chat import prompt_ids
from data.reading.messages import Message
from data.reply import read_reply
from data.tokenizer import Tokenizer
from eval.load_model import add_device_option, open_model
from model import LanguageModel, generate


def complete(
    lm: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | list[int],
    max_new_tokens: int,
    temperature: float = 0.8,
    top_p: float | None = 0.95,
    seed: int = 0,
    begin_document: bool = True,
    chat: bool = False,
) -> Message:
    """Return the prompt and its continuation, up to the end of the document.

    prompt:         text, or ids
    begin_document: put the first token of a document in front; an empty prompt always has it
    chat:           return the answer to the prompt instead, parsed

    Raises InputError for a prompt that fills the context.
    """
    if not isinstance(prompt, str):
        ids = prompt
    elif chat and prompt:
        ids = prompt_ids(tokenizer, [{"role": "user", "content": prompt}])
    # A single text has only one beginning, so its model rarely saw that token.
    elif begin_document or not prompt:
        ids = tokenizer.begin(prompt)
    else:
        ids = tokenizer.encode(prompt)
    # with a full context there is no room for a single new token
    longest = lm.config.max_position_embeddings
    if len(ids) >= longest:
        raise InputError(f"the prompt has {len(ids)} tokens, the context {longest}: shorten it")
    row = torch.tensor([ids], device=lm.device)  # (1, T)
    # generate returns the prompt too
    tokens = generate(
        lm,
        row,
        max_new_tokens,
        temperature,
        top_p=top_p,
        stop_ids=tokenizer.stop_ids,
        seed=seed,
    )[0].tolist()
    if chat and prompt:
        return read_reply(tokenizer, tokens[len(ids) :], ids).message
    return Message("assistant", tokenizer.decode(tokens))


def thinks(message: Message) -> str:
    """Format an answer's thoughts; "" without any."""
    return f"(thinks: {message.reasoning_content})" if message.reasoning_content else ""


def no_token_for(letters: str) -> str:
    """Warn of characters of a prompt that a `char` model never saw."""
    return f"this model has no token for {escape(letters)} and reads an unknown character instead"


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("run", help="a run or a checkpoint directory, for example runs/demo")
    add("prompt", nargs="?", default="", help="text to continue; default: a document's beginning")
    add("--chat", action="store_true", help="the prompt is a question: print the answer")
    add_number(parser, "--max-new-tokens", 200, "at most this many", least=0)
    likeliest = "0 = always the likeliest token"
    add_number(parser, "--temperature", 0.8, likeliest, least=0, kind=float)
    share = "draw from the likeliest tokens with this probability in all"
    add_number(parser, "--top-p", 0.95, share, least=1e-6, most=1, kind=float)
    add_number(parser, "--seed", 0, "the same seed gives the same text", least=0)
    add_device_option(parser)
    # options may come between run and prompt
    args = parser.parse_intermixed_args()
    lm, tokenizer = open_model(args.run, args.device)
    options = (args.max_new_tokens, args.temperature, args.top_p, args.seed)
    try:
        reply = complete(lm, tokenizer, args.prompt, *options, chat=args.chat)
    except ValueError as error:
        raise InputError(str(error)) from None
    # To stderr, as thoughts are: standard output has the text and nothing else.
    unknown = tokenizer.unknown_in(args.prompt)
    if unknown:
        print(translated(no_token_for(unknown)), file=sys.stderr)
    if reply.reasoning_content:
        print(thinks(reply), file=sys.stderr)
    print(reply.content)


if __name__ == "__main__":
    exit_on_bad_input(main)
