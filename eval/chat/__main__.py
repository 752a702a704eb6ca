"""Talk to a run in the terminal: `python -m eval.chat runs/sft_demo`.

A run that was trained on texts, not on chats, continues what you type. Piped lines are answered
one after the other. Within the program:

    /attention [L,H]   what one head (layer, head) looked at while it wrote the last answer
    /temperature [T]   how random the answers are: 0 = always the likeliest token
    /system [TEXT]     a message before all others; without a text, none
    /adapter [NAME]    switch to other adapters, to begin a new conversation with them; base = none
    /reset             begin a new conversation
    /help              these lines
    /quit              leave, as Ctrl-D does; Ctrl-C stops an answer
"""

import argparse
import io
import re
import shutil
import sys
from contextlib import closing, nullcontext, suppress
from dataclasses import replace

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
)
from configs.files import run_path
from configs.language import translated
from configs.text import escape, plain
from data.reading.messages import Role
from data.reply import CALL
from eval.chat.attention import attention_map, head_to_show, look_back
from eval.chat.session import first_line, open_conversation
from eval.load_model import add_device_option, add_quantise_option
from eval.questions import one_question, source_of
from eval.samples import no_token_for
from eval.tools import MOST_CALLS, SCHEMAS, respond
from model.variants.config import SCALINGS

HELP = __doc__[__doc__.index("    /attention") :].rstrip("\n")
# From the help text itself, so that it lists every command, and no other.
COMMANDS = [line.split()[0] for line in HELP.splitlines()]
BASE = "base"  # This name means the model without adapters.


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("run", type=run_path, help="a run or a checkpoint directory, for example runs/sft_demo")
    likeliest = "0 = always the likeliest token; default: as the run's"
    add_number(parser, "--temperature", None, likeliest, least=0, kind=float)
    add_number(parser, "--max-new-tokens", 256, "of an answer")
    add("--system", default="", metavar="TEXT", help="a message before all others")
    add_number(parser, "--seed", 0, "the same seed and lines give the same answers", least=0)
    add("--tools", action="store_true", help="a calculator that the model can call")
    add(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=RUN",
        help="a run with adapters (LoRA) of this base; several may be given, /adapter switches",
    )
    add(
        "--rope-scaling",
        choices=SCALINGS,
        help="read texts longer than those of training; default: as it was saved",
    )
    about = "longest text from now on / longest text in training (4)"
    add_number(parser, "--rope-factor", None, about, kind=float)
    add_quantise_option(parser)
    add_device_option(parser)
    args = parser.parse_args()
    if args.quantise and args.adapter:
        raise InputError(
            "--quantise and --adapter: adapters belong to the weights as they were saved: "
            "leave one out"
        )
    if args.rope_factor is not None and args.rope_scaling in (None, "none"):
        raise InputError("--rope-factor is for --rope-scaling linear or yarn: give one as well")
    if isinstance(sys.stdin, io.TextIOWrapper):  # not in a notebook
        sys.stdin.reconfigure(errors="replace")  # piped bytes may not be UTF-8
    Chat(args).run()


def remark(text: str) -> None:
    """Print a line about the chat to stderr, so that piped answers stay clean."""
    print(plain(translated(text)), file=sys.stderr, flush=True)


class Chat:
    """The program around a Conversation. A command calls the method of its name."""

    def __init__(self, args: argparse.Namespace):
        self.run_directory = args.run
        self.is_interactive = sys.stdin.isatty()
        rope = (args.rope_scaling, args.rope_factor or 4.0) if args.rope_scaling else None
        self.conversation = open_conversation(
            args.run,
            args.temperature,
            args.device,
            rope,
            args.quantise,
            max_new_tokens=args.max_new_tokens,
            seed=args.seed,
        )
        self.adapters: dict[str, str | None] = {BASE: None}
        for text in args.adapter:
            name, _, run = text.partition("=")
            if not (name and run) or name in self.adapters:
                raise InputError(
                    f"--adapter {text}: give NAME=RUN, each with another name than {BASE!r}"
                )
            self.adapters[name] = run
        self.adapter_in_use = BASE
        if args.adapter:
            # the first one that was given; BASE comes before it
            self.use([*self.adapters][1])
        try:
            if args.tools:
                self.conversation.tools = SCHEMAS
                # raises ValueError for a tokenizer without calls
                self.conversation.tokenizer.special_id(CALL)
            if args.system or args.tools:
                self.conversation.set_system(args.system)
        except ValueError as error:
            raise InputError(f"{'--tools' if args.tools else '--system'}: {error}") from None

    def run(self) -> None:
        self.welcome()
        while True:
            try:
                # no prompt in a pipe: its output must hold answers only
                line = input("> " if self.is_interactive else "").strip()
                command, _, rest = line.partition(" ")
                if command == "/quit":
                    return
                if command in COMMANDS:
                    # only names of COMMANDS get here, so nobody can call another method
                    getattr(self, command[1:])(rest.strip())
                elif command.startswith("/"):
                    remark(f"unknown command {escape(command)}: /help lists the commands")
                else:
                    self.answer(line)
            # a mistake costs a line, not the conversation
            except (ValueError, OSError, InputError) as error:
                remark(escape(str(error)))
            except EOFError:
                if self.is_interactive:
                    print()
                return
            except KeyboardInterrupt:
                if not self.is_interactive:  # Ctrl-C ends a script
                    raise
                print()
                remark("(Ctrl-D or /quit leaves)")

    def welcome(self) -> None:
        conversation = self.conversation
        if self.is_interactive:
            with suppress(ImportError):
                # From now on input() edits lines. Windows has no readline, but does it itself.
                import readline  # noqa: F401
            size = conversation.lm.num_parameters() / 1e6
            remark(
                f"{self.run_directory}: {size:.2f} M parameters, it sees "
                f"{conversation.context_length:,} tokens, "
                f"temperature {conversation.sampling.temperature:g}"
            )
            remark("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")
        if not conversation.is_chat:
            remark("This run was trained on texts, not on chats: it continues what you type.")
            text = first_line(self.run_directory) if self.is_interactive else ""
            if text:
                remark(f"Begin as its texts do, for example: {text}")
        elif self.is_interactive:
            # a run of other data raises: then nothing is suggested
            with suppress(InputError, ValueError):
                # 650 characters are some 200 tokens: short enough to read, and for any context
                question = one_question(
                    source_of(self.run_directory),
                    0,
                    lambda question: len(question.messages[-1]["content"]) < 650,
                )
                remark("It was trained only on stories and questions about them. Try this line:")
                remark(question.messages[-1]["content"])

    def answer(self, text: str, role: Role = "user", calls_left: int = MOST_CALLS) -> None:
        """Print one answer while it comes; run the tools that it calls, and go on."""
        conversation = self.conversation
        pieces = conversation.answer(text, role)
        unknown = conversation.tokenizer.unknown_in(text)
        if unknown:
            remark(no_token_for(unknown))
        if conversation.forgotten:
            turns = f"the {conversation.forgotten} oldest turns are"
            if conversation.forgotten == 1:
                turns = "the oldest turn is"
            remark(f"(more than {conversation.context_length:,} tokens by now: {turns} forgotten)")
        thought = answer = ""
        # Ctrl-C ends an answer; its text stays in the conversation.
        interrupts = suppress(KeyboardInterrupt) if self.is_interactive else nullcontext()
        with closing(pieces), interrupts:
            for piece in pieces:
                # A piece has content only; the thoughts that came with it are beside it.
                thought += conversation.thought
                # thoughts come before the answer: print them as a whole when it begins
                if piece and thought:
                    remark(f"(thinks: {thought})")
                    thought = ""
                print(piece if answer.strip() else piece.lstrip(), end="", flush=True)
                answer += piece
        if answer.strip():
            print(flush=True)
        if thought:
            remark(f"(thinks: {thought})")
        # known only now: a call is complete when its turn has ended
        calls = conversation.reply.calls
        ended = conversation.last.ended if conversation.last else ""
        if ended == "stopped":
            remark("(stopped)")
        elif ended == "cut":
            tokens = conversation.max_new_tokens
            remark(f"(cut after {tokens:,} tokens: raise --max-new-tokens for more)")
        elif ended == "full":
            tokens = conversation.context_length
            remark(f"(cut: the model's context of {tokens:,} tokens is full)")
        elif not answer.strip() and not calls:
            remark("(an empty answer)")
        elif not conversation.is_chat and self.is_interactive:
            remark("(here the text ends; the next line begins a new one)")
        if calls and calls_left:
            # all calls of a turn get one response, as in eval/tools/answers.py
            responses = "\n".join(map(respond, calls))
            remark(f"(calls: {escape(', '.join(calls))})\n(tool: {escape(responses)})")
            self.answer(responses, "tool", calls_left - 1)

    def attention(self, rest: str) -> None:
        answer = look_back(self.conversation)
        if rest:
            layers = answer.maps.layers
            heads = answer.maps.heads
            numbers = [int(digits) for digits in re.findall(r"\d+", rest)]  # 2,0 or L2 H0
            if len(numbers) != 2 or numbers[0] not in layers or numbers[1] not in heads:
                raise ValueError(
                    f"/attention takes a layer, 0 to {layers[-1]}, and a head, 0 to {heads[-1]}, "
                    f"for example 1,0"
                )
            layer, head = numbers
            title = f"L{layer} H{head}"
        else:
            layer, head, reason = head_to_show(self.run_directory, answer)
            title = f"L{layer} H{head}, {reason}"
        # 80 x 24: in a pipe nobody knows the size
        size = shutil.get_terminal_size((80, 24))
        most_rows = max(8, size.lines - 8) if sys.stdout.isatty() else None
        # an index, because a hybrid model has maps of some layers only
        weights = answer.maps.weights[answer.maps.layers.index(layer), 0, head].numpy()
        width = max(20, size.columns - 1)
        rows = attention_map(weights, answer.labels, answer.first, width, most_rows)
        end = "at its end: the token with most"
        hidden = len(answer.labels) - answer.first - len(rows)
        if hidden > 0:
            end += f"; {hidden} more rows are not shown"
        print(translated(title), *rows, sep="\n")
        print(
            translated(
                "a row: a token that looks; in it, from left to right, the tokens so far (█ = 1)"
            )
        )
        print(translated(end), flush=True)

    def temperature(self, rest: str) -> None:
        if rest:
            sampling = self.conversation.sampling
            # Sampling checks the number, and what float refuses is a ValueError, too
            self.conversation.sampling = replace(sampling, temperature=float(rest))
        remark(f"temperature {self.conversation.sampling.temperature:g}")

    def system(self, rest: str) -> None:
        self.conversation.set_system(rest)
        remark("this comes before all messages now" if rest else "no system message")

    def adapter(self, rest: str) -> None:
        if rest:
            self.use(rest)
        new = "; a new conversation" if rest else ""
        remark(f"adapters in use: {self.adapter_in_use}{new} ({', '.join(self.adapters)})")

    def use(self, name: str) -> None:
        """Switch to the adapters of this name, in a new conversation. Raises InputError."""
        if name not in self.adapters:
            raise InputError(
                f"no adapters are named {name!r}: use {', '.join(self.adapters)} "
                f"(--adapter NAME=RUN)"
            )
        self.adapter_in_use = BASE  # what remains if the next line raises
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
