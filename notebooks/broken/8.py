import torch
from torch.nn.utils.rnn import pad_sequence

from configs.files import append_line
from eval.hooks import EvalEvent
from eval.hooks.held_out import Samples
from eval.run_files import SAMPLES
from model import generate
from notebooks.broken import train


def all_at_once(self: Samples, event: EvalEvent) -> None:
    """Pad prompts of different lengths on the right, so that new tokens come after a gap."""
    settings = event.eval_config
    tokenizer = event.tokenizer
    prompts = [torch.tensor(tokenizer.begin(prompt)) for prompt in settings.prompts]
    rows = pad_sequence(prompts, batch_first=True, padding_value=tokenizer.pad_id)  # (B, longest)
    options = {"temperature": settings.temperature, "top_p": settings.top_p, "seed": 0}
    texts = generate(event.lm, rows, settings.sample_tokens, stop_ids=(), **options)
    for prompt, ids in zip(settings.prompts, texts.tolist(), strict=True):
        text = tokenizer.decode([token for token in ids if token != tokenizer.pad_id])
        record = {"step": event.step, "prompt": prompt, "text": text}
        append_line(event.directory / SAMPLES, record)


def break_it() -> None:
    """Write all samples as one batch that is padded on the right."""
    Samples.evaluate = all_at_once  # type: ignore[method-assign]


if __name__ == "__main__":
    train(8, break_it)
