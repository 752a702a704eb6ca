"""How do you talk to a run? In the terminal: `python -m eval.chat runs/sft_demo`.

A run that was trained on texts, not on chats, continues what you type. What goes round in circles is stopped. Piped
lines are answered one after the other. Within the program:

    /attention [L,H]   what one head looked at while it wrote the last answer; all heads as a picture
    /temperature [T]   how random the answers are: 0 = always the likeliest token
    /system [TEXT]     a message before all others; without a text, none
    /cache             how many tokens the last answer had to read, and how many were in the key-value cache
    /adapter [NAME]    switch to other adapters, to begin a new conversation with them; base = none
    /reset             begin a new conversation
    /help              these lines
    /quit              leave, as Ctrl-D does; Ctrl-C stops an answer
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, number, whole
from configs.text import escape
from data.reply import CALL
from eval.opening import add_device_option, add_quantise_option, add_rope_options, check_rope_options
from eval.tools.calls import MOST_CALLS, SCHEMAS, respond

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from eval.chat.session import Conversation

HELP = __doc__[__doc__.index("    /attention") :].rstrip("\n")
ENDED = {  # how an answer ended, if not by itself
    "stopped": "(stopped)",
    "cut": "(cut after {} tokens: --max-new-tokens gives it more)",
    "full": "(cut: the model's context of {} tokens is full)",
    "loops": "(stopped: it repeats the same words again and again; a higher /temperature makes that rarer)",
}


def main() -> int:
    given = parse()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # whatever is piped in
    try:
        return Chat(given).run()
    except KeyboardInterrupt:  # while it loads, or between piped lines
        return 130


def parse() -> argparse.Namespace:
    """The command line. Raises InputError for a number out of range."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.chat", description=__doc__, formatter_class=form)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/sft_demo")
    parser.add_argument(
        "--temperature",
        type=number("--temperature", 0),
        help="0 = always the likeliest token; default: eval.temperature",
    )
    parser.add_argument(
        "--top-p",
        type=number("--top-p", 1e-6, 1),
        default=0.95,
        help="draw from the likeliest tokens that reach p (0.95)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=whole("--max-new-tokens", 1),
        default=256,
        metavar="N",
        help="of an answer (256)",
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="a message before all others")
    parser.add_argument(
        "--seed",
        type=whole("--seed", 0),
        default=0,
        help="the same seed and lines give the same answers (0)",
    )
    parser.add_argument("--tools", action="store_true", help="a calculator and a look-up in the chat, as it calls them")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=RUN",
        help="a run with adapters (LoRA) of this base; may be given several times, and /adapter switches",
    )
    parser.add_argument("--ascii", action="store_true", help="draw maps without Unicode blocks")
    add_rope_options(parser)
    add_quantise_option(parser)
    add_device_option(parser)
    given = parser.parse_args()
    if given.quantise and given.adapter:
        raise InputError("--quantise and --adapter: adapters belong to the weights as they were saved: leave one out")
    check_rope_options(given.rope_scaling, given.rope_factor)
    return given


class Chat:
    """The program around a Conversation. Answers, maps and help go to stdout; remarks too, if it is a terminal."""

    def __init__(self, given: argparse.Namespace):
        from eval.chat.adapters import Adapters
        from eval.chat.session import open_conversation
        from eval.chat.terminal import Wrapped, prints_blocks

        self.run_directory = Path(given.run)
        self.is_interactive = sys.stdin.isatty()
        self.out = Wrapped(sys.stdout)
        self.remarks = self.out if self.is_interactive and self.out.wraps else Wrapped(sys.stderr)
        self.blocks = not given.ascii and prints_blocks(sys.stdout)
        settings = {"top_p": given.top_p, "max_new_tokens": given.max_new_tokens, "seed": given.seed}
        rope = (given.rope_scaling, given.rope_factor)
        opened = open_conversation(given.run, given.temperature, given.device, rope, given.quantise, **settings)
        self.conversation: Conversation = opened
        self.adapters = Adapters(opened, given.adapter)
        self.said: list[str] = []  # by the user, for the look-up
        self.is_thinking = False
        try:
            if given.tools:
                self.conversation.tools = SCHEMAS
                opened.tokenizer.special_id(CALL)  # raises where the tokenizer knows no calls
            if given.system or given.tools:
                self.conversation.set_system(given.system)
        except ValueError as error:
            raise InputError(f"{'--tools' if given.tools else '--system'}: {error}") from None

    def run(self) -> int:
        """Answer line by line, until there are no more, or /quit."""
        self.greet()
        interrupted = False
        while True:
            try:
                if interrupted:  # said in here, so that one more Ctrl-C does no harm
                    print()
                    self.remarks.line("(Ctrl-D or /quit leaves)")
                    interrupted = False
                line = self.read()
                if line is None or line.split()[:1] in (["/quit"], ["/exit"]):
                    return 0
                self.command(line.strip()) if line.startswith("/") else self.answer(line.strip())
            except (ValueError, OSError, InputError) as error:
                self.remarks.line(str(error))
            except KeyboardInterrupt:
                if not self.is_interactive:
                    raise
                interrupted = True

    def read(self) -> str | None:
        """The next line, typed or piped in; None at the end."""
        if not self.is_interactive:
            return sys.stdin.readline() or None
        with suppress(ImportError):  # there is none on Windows, whose terminal edits lines itself
            import readline  # noqa: F401  # from now on input() uses it
        try:
            return input("> ")
        except EOFError:
            print()
            return None

    def greet(self) -> None:
        from eval.chat.first_line import first_line

        conversation = self.conversation
        if self.is_interactive:
            size = sum(parameter.numel() for parameter in conversation.lm.parameters())
            sees = f"it sees {conversation.context_length:,} tokens"
            if (scaling := conversation.lm.config.rope_scaling) is not None:
                sees += f" (RoPE scaled: {scaling.rope_type}, factor {scaling.factor:g})"
            drawn = f"temperature {conversation.sampling.temperature:g}"
            self.remarks.line(f"{self.run_directory}: {size / 1e6:.2f} M parameters, {sees}, {drawn}")
        if not conversation.is_chat:
            self.remarks.line("This run was trained on texts, not on chats: it continues what you type.")
            if self.is_interactive and (suggested := first_line(self.run_directory)):
                self.remarks.line(f"Begin as its texts do, for example: {suggested}")
        if self.is_interactive:
            self.remarks.line("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")

    def answer(self, text: str) -> None:
        """Write the answer while it comes; Ctrl-C ends it, and what was written stays in the conversation."""
        self.said.append(text)
        self.write_answer(text, "user")
        for _ in range(MOST_CALLS):
            calls, said = self.conversation.reply.calls, " ".join(self.said)
            if not calls:
                return
            self.remarks.line(f"(calls: {escape(', '.join(calls))})")
            responses = "\n".join(respond(call, said) for call in calls)
            self.remarks.line(f"(tool: {escape(responses)})")
            self.write_answer(responses, "tool")

    def write_answer(self, text: str, role: str) -> None:
        """One answer, to the user or to a tool."""
        conversation = self.conversation
        pieces = conversation.answer(text, role)
        if count := conversation.forgotten:
            turns = "the oldest turn is" if count == 1 else f"the {count} oldest turns are"
            self.remarks.line(f"(more than {conversation.context_length:,} tokens by now: {turns} forgotten)")
        begun = False
        with closing(pieces), noted_interrupt(self.is_interactive) as stopped:
            for piece in pieces:
                self.think(conversation.thought, is_over=bool(piece))
                self.out.write(piece if begun else piece.lstrip())
                begun = begun or bool(piece.strip())
                if stopped():
                    break
        self.think("", is_over=True)
        self.out.end()
        last = conversation.last
        assert last is not None
        if last.ended:
            limit = conversation.max_new_tokens if last.ended == "cut" else conversation.context_length
            self.remarks.line(ENDED[last.ended].format(f"{limit:,}"))
        elif not begun and not conversation.reply.calls:
            self.remarks.line("(an empty answer)")
        elif not conversation.is_chat and self.is_interactive:
            self.remarks.line("(here the text ends; the next line begins a new one)")

    def think(self, thought: str, is_over: bool) -> None:
        """Show what the model thinks beside what it answers: "(thinks: …)"."""
        if thought:
            self.remarks.write(thought if self.is_thinking else f"(thinks: {thought}")
            self.is_thinking = True
        if is_over and self.is_thinking:
            self.remarks.write(")")
            self.remarks.end()
            self.is_thinking = False

    def command(self, text: str) -> None:
        """Carry out `/name rest`. Raises ValueError with what to do instead."""
        name, _, rest = text.partition(" ")
        commands: dict[str, Callable[[str], Any]] = {
            "/attention": self.attention,
            "/temperature": self.temperature,
            "/system": self.system,
            "/cache": self.cache,
            "/adapter": self.adapter,
            "/reset": self.reset,
            "/help": self.help,
        }
        if name not in commands:
            close = difflib.get_close_matches(name, [*commands, "/quit"], 1, 0.5)
            nearest = f"did you mean {close[0]}?" if close else "/help lists the commands"
            raise ValueError(f"unknown command {name}: {nearest}")
        commands[name](rest.strip())

    def attention(self, rest: str) -> None:
        """The map of the last answer: one head here, all of them in a picture."""
        from eval.chat.attention import draw, head_to_show, look_back, read_head
        from eval.chat.terminal import attention_map, terminal_width

        looked = look_back(self.conversation)
        layer, head, why = (*read_head(rest, looked), "") if rest else head_to_show(self.run_directory, looked)
        size = shutil.get_terminal_size((80, 24))
        most = max(8, size.lines - 8) if self.out.wraps else len(looked.labels)
        weights = looked.maps.weights[layer, 0, head].numpy()
        width = terminal_width() if self.out.wraps else 79
        rows = attention_map(weights, looked.labels, looked.first, width, most, self.blocks)
        self.out.line(f"L{layer} H{head}{f', {why}' if why else ''}")
        self.out.end()
        print("\n".join(rows))
        more = len(looked.labels) - looked.first - len(rows)
        self.out.line(
            f"a row: a token that looks; in it, from left to right, the {looked.first + len(rows)} tokens so far "
            f"({'█' if self.blocks else '@'} = 1); at its end the one with most"
            + (f"; {more} more rows are in the picture" if more > 0 else "")
        )
        for file in draw(looked, self.run_directory, layer, head):
            print(file, flush=True)  # unwrapped: it may be copied

    def temperature(self, rest: str) -> None:
        if rest:
            try:
                value = float(rest)
            except ValueError:
                raise ValueError(f"/temperature takes a number, for example /temperature 0.5, not {rest!r}") from None
            self.conversation.set_temperature(value)
        self.remarks.line(f"temperature {self.conversation.sampling.temperature:g}")

    def system(self, rest: str) -> None:
        self.conversation.set_system(rest)
        self.remarks.line("this stands before all messages now" if rest else "no system message")

    def cache(self, rest: str) -> None:
        last, cache = self.conversation.last, self.conversation.cache
        if last is None:
            raise ValueError("there is no answer yet")
        self.remarks.line(
            f"last answer: {last.reused:,} tokens were in the cache, {last.read:,} were run through the model; "
            f"it holds {cache.length:,} tokens now, {cache.nbytes / 1000:,.0f} kB"
        )

    def adapter(self, rest: str) -> None:
        if not self.adapters.runs:
            raise ValueError("there are no adapters here: start with --adapter NAME=RUN, once for each of them")
        if rest:
            self.adapters.use(rest)
            self.said.clear()
        there = ", ".join(("base", *self.adapters.runs))
        self.remarks.line(f"adapters in use: {self.adapters.used}{'; a new conversation' if rest else ''} ({there})")

    def reset(self, rest: str) -> None:
        self.conversation.reset()
        self.said.clear()
        self.remarks.line("a new conversation" if self.conversation.is_chat else "a new text")

    def help(self, rest: str) -> None:
        for line in HELP.splitlines():
            self.out.line(re.sub("   +", "  ", line.strip()) if self.out.wraps else line)


@contextmanager
def noted_interrupt(is_interactive: bool) -> Iterator[Callable[[], bool]]:
    """While inside, Ctrl-C is only noted; the function given says whether. A second one is a KeyboardInterrupt."""
    noted = False

    def note(number: int, frame: Any) -> None:
        nonlocal noted
        noted = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if is_interactive:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        if is_interactive:
            signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    exit_on_bad_input(main)
