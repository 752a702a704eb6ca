"""Supervised fine-tuning on conversations: `python -m train.sft configs/sft_demo.yaml
init_from=runs/demo [...]`

It is pretraining (train/pretrain.py) that starts from a trained model, with its tokenizer and with
the same loss. Only the labels differ: where the user speaks they are -100, which the loss leaves
out. So the model learns to answer, not to ask.

    input_ids   <|im_start|> user ⏎ Hi ! <|im_end|> ⏎ <|im_start|> assistant ⏎ Hel lo ! <|im_end|> ⏎
    labels      -100 -100 -100 -100 … -100                                     Hel lo ! <|im_end|> ⏎

    labels = np.where(flags & TRAINED, ids, -100)      data/packing.py; data/chat.py sets the flags
    loss   = Σ -ln p(label) / number of labels         NextToken in train/objective.py
"""

from configs.command import exit_on_bad_input
from train.pretrain import run
from train.run.command_line import parse_command_line


def main() -> int:
    description = "Fine-tune a trained model on conversations."
    example = "configs/sft_demo.yaml init_from=runs/demo"
    return run(parse_command_line(description, example, "train.sft"), "train.sft")


if __name__ == "__main__":
    exit_on_bad_input(main)
