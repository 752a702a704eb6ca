"""How do you talk to a run? In the terminal: `python -m eval.chat runs/sft_demo`.

A run that was trained on texts, not on chats, continues what you type. Piped lines are answered one after the other.
Within the program:

    /attention [L,H]   what one head (layer, head) looked at while it wrote the last answer
    /temperature [T]   how random the answers are: 0 = always the likeliest token
    /system [TEXT]     a message before all others; without a text, none
    /adapter [NAME]    switch to other adapters, to begin a new conversation with them; base = none
    /reset             begin a new conversation
    /help              these lines
    /quit              leave, as Ctrl-D does; Ctrl-C stops an answer
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from contextlib import closing, nullcontext, suppress
from dataclasses import replace

from configs.command import InputError, exit_on_bad_input, integer, number
from configs.files import run_path
from configs.language import translated
from configs.text import escape, plain
from data.chat import CALL
from data.reading.messages import Role
from eval.chat.attention import attention_map, head_to_show, look_back, read_head
from eval.chat.session import first_line, open_conversation
from eval.load_model import add_device_option, add_quantise_option
from eval.questions import Question, one_question, source_of
from eval.samples import no_token_for
from eval.tools import MOST_CALLS, SCHEMAS, respond
from model.variants.config import SCALINGS

HELP = __doc__[__doc__.index("    /attention") :].rstrip("\n")
COMMANDS = [line.split()[0] for line in HELP.splitlines()]
BASE = "base"  # the name of the model without adapters
ENDED = {  # how an answer ended, if not by itself
    "stopped": "(stopped)",
    "cut": "(cut after {:,} tokens: --max-new-tokens gives it more)",
    "full": "(cut: the model's context of {:,} tokens is full)",
}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.chat", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("run", type=run_path, help="a run or a checkpoint directory, for example runs/sft_demo")
    add("--temperature", type=number("--temperature", 0), help="0 = always the likeliest token; default: as the run's")
    add("--max-new-tokens", type=integer("--max-new-tokens", 1), default=256, metavar="N", help="of an answer (256)")
    add("--system", default="", metavar="TEXT", help="a message before all others")
    add("--seed", type=integer("--seed", 0), default=0, help="the same seed and lines give the same answers (0)")
    add("--tools", action="store_true", help="a calculator in the chat, when it calls it")
    adapter = "a run with adapters (LoRA) of this base; may be given several times, and /adapter switches"
    add("--adapter", action="append", default=[], metavar="NAME=RUN", help=adapter)
    add("--rope-scaling", choices=SCALINGS, help="read texts longer than those of training; default: as it was saved")
    factor = "longest text from now on / longest text in training (4)"
    add("--rope-factor", type=number("--rope-factor", 1), metavar="N", help=factor)
    add_quantise_option(parser)
    add_device_option(parser)
    given = parser.parse_args()
    if given.quantise and given.adapter:
        raise InputError("--quantise and --adapter: adapters belong to the weights as they were saved: leave one out")
    if given.rope_factor is not None and given.rope_scaling in (None, "none"):
        raise InputError("--rope-factor is for --rope-scaling linear or yarn: give one of them as well")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # whatever is piped in
    Chat(given).run()


def remark(text: str) -> None:
    """A line about the chat: apart from the answers, if those are piped on."""
    print(plain(translated(text)), file=sys.stderr, flush=True)


def is_short(question: Question) -> bool:
    return len(question.messages[-1]["content"]) < 650  # some 200 tokens


class Chat:
    """The program around a Conversation. A command is the method of its name, and is given what stands behind it."""

    def __init__(self, given: argparse.Namespace):
        self.run_directory, self.is_interactive = given.run, sys.stdin.isatty()
        rope = (given.rope_scaling, given.rope_factor or 4.0) if given.rope_scaling else None
        settings = {"max_new_tokens": given.max_new_tokens, "seed": given.seed}
        opened = open_conversation(given.run, given.temperature, given.device, rope, given.quantise, **settings)
        self.conversation = opened
        self.adapters: dict[str, str | None] = {BASE: None}
        for text in given.adapter:
            name, _, run = text.partition("=")
            if not (name and run) or name in self.adapters:
                raise InputError(f"--adapter {text}: give NAME=RUN, each with a name of its own other than {BASE!r}")
            self.adapters[name] = run
        self.adapter_in_use = BASE
        for name in [*self.adapters][1:2]:
            self.use(name)
        try:
            if given.tools:
                opened.tools = SCHEMAS
                opened.tokenizer.special_id(CALL)  # raises where the tokenizer knows no calls
            if given.system or given.tools:
                opened.set_system(given.system)
        except ValueError as error:
            raise InputError(f"{'--tools' if given.tools else '--system'}: {error}") from None

    def run(self) -> None:
        """Answer line by line, until there are no more, or /quit."""
        opened = self.conversation
        if self.is_interactive:
            with suppress(ImportError):  # there is none on Windows, whose terminal edits lines itself
                import readline  # noqa: F401  # from now on input() uses it
            size = f"{opened.lm.num_parameters() / 1e6:.2f} M parameters, it sees {opened.context_length:,} tokens"
            remark(f"{self.run_directory}: {size}, temperature {opened.sampling.temperature:g}")
            remark("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")
        if not opened.is_chat:
            remark("This run was trained on texts, not on chats: it continues what you type.")
            if self.is_interactive and (suggested := first_line(self.run_directory)):
                remark(f"Begin as its texts do, for example: {suggested}")
        elif self.is_interactive:
            with suppress(InputError, ValueError):  # of the built-in world, it knows nothing else
                *_, example = one_question(source_of(self.run_directory), 0, is_short).messages
                remark("It was trained on stories and questions about them, and knows no other talk. Try this line:")
                remark(example["content"])
        while True:
            try:
                line = input("> " if self.is_interactive else "")
                command, _, rest = line.strip().partition(" ")
                if command == "/quit":
                    return
                if command in COMMANDS:
                    getattr(self, command[1:])(rest.strip())
                elif command.startswith("/"):
                    remark(f"unknown command {escape(command)}: /help lists the commands")
                else:
                    self.answer(line.strip())
            except (ValueError, OSError, InputError) as error:
                remark(escape(str(error)))
            except EOFError:
                return print() if self.is_interactive else None
            except KeyboardInterrupt:
                if not self.is_interactive:
                    raise
                print()
                remark("(Ctrl-D or /quit leaves)")

    def answer(self, text: str, role: Role = "user", calls_left: int = MOST_CALLS) -> None:
        """Write one answer while it comes; and as long as the model calls tools, go on with what these give.

        Ctrl-C ends an answer, and what was written stays in the conversation.
        """
        conversation, thought, answer = self.conversation, "", ""
        pieces = conversation.answer(text, role)
        if unknown := conversation.tokenizer.unknown_in(text):
            remark(no_token_for(unknown))
        if count := conversation.forgotten:
            turns = "the oldest turn is" if count == 1 else f"the {count} oldest turns are"
            remark(f"(more than {conversation.context_length:,} tokens by now: {turns} forgotten)")
        with closing(pieces), suppress(KeyboardInterrupt) if self.is_interactive else nullcontext():
            for piece in pieces:
                thought += conversation.thought
                if piece and thought:
                    remark(f"(thinks: {thought})")
                    thought = ""
                print(piece if answer.strip() else piece.lstrip(), end="", flush=True)
                answer += piece
        if answer.strip():
            print(flush=True)
        if thought:
            remark(f"(thinks: {thought})")
        calls, ended = conversation.reply.calls, conversation.last.ended if conversation.last else ""
        if ended:
            remark(ENDED[ended].format(conversation.max_new_tokens if ended == "cut" else conversation.context_length))
        elif not answer.strip() and not calls:
            remark("(an empty answer)")
        elif not conversation.is_chat and self.is_interactive:
            remark("(here the text ends; the next line begins a new one)")
        if calls and calls_left:
            responses = "\n".join(map(respond, calls))
            remark(f"(calls: {escape(', '.join(calls))})\n(tool: {escape(responses)})")
            self.answer(responses, "tool", calls_left - 1)

    def attention(self, rest: str) -> None:
        answer = look_back(self.conversation)
        layer, head, why = (*read_head(rest, answer), "") if rest else head_to_show(self.run_directory, answer)
        size = shutil.get_terminal_size((80, 24))
        most_rows = max(8, size.lines - 8) if sys.stdout.isatty() else None
        weights = answer.maps.weights[layer, 0, head].numpy()
        rows = attention_map(weights, answer.labels, answer.first, max(20, size.columns - 1), most_rows)
        more = len(answer.labels) - answer.first - len(rows)
        print(translated(f"L{layer} H{head}{f', {why}' if why else ''}"), *rows, sep="\n")
        print(translated("a row: a token that looks; in it, from left to right, the tokens so far (█ = 1)"))
        end = f"at its end: the token with most{f'; {more} more rows are not shown' if more > 0 else ''}"
        print(translated(end), flush=True)

    def temperature(self, rest: str) -> None:
        if rest:
            self.conversation.sampling = replace(self.conversation.sampling, temperature=float(rest))
        remark(f"temperature {self.conversation.sampling.temperature:g}")

    def system(self, rest: str) -> None:
        self.conversation.set_system(rest)
        remark("this stands before all messages now" if rest else "no system message")

    def adapter(self, rest: str) -> None:
        if rest:
            self.use(rest)
        new = "; a new conversation" if rest else ""
        remark(f"adapters in use: {self.adapter_in_use}{new} ({', '.join(self.adapters)})")

    def use(self, name: str) -> None:
        """Switch to the adapters of this name, in a new conversation. Raises InputError for what does not fit."""
        if name not in self.adapters:
            raise InputError(f"no adapters are named {name!r}: use {', '.join(self.adapters)} (--adapter NAME=RUN)")
        self.adapter_in_use = BASE
        try:
            self.conversation.use_adapters(self.adapters[name])
        except InputError as error:
            raise InputError(f"--adapter {name}: {error}") from None
        self.adapter_in_use = name

    def reset(self, rest: str) -> None:
        self.conversation.reset()
        remark("a new conversation" if self.conversation.is_chat else "a new text")

    def help(self, rest: str) -> None:
        print(translated(HELP), flush=True)


if __name__ == "__main__":
    exit_on_bad_input(main)
