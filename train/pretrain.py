"""Pretraining: `python -m train.pretrain configs/demo.yaml [section.key=value ...]`

Several GPUs: `torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml`. `run` reads top to bottom: processes,
device, data, model, optimizer and where to go on, train, report. train/sft.py calls the same.
"""

from __future__ import annotations

from configs.loader import exit_on_bad_input
from train.config import RunConfig, parse_command_line


def main() -> int:
    # The config: one YAML file, checked before anything heavy is imported or written.
    return run(parse_command_line("Train a language model from scratch."), "train.pretrain")


def run(config: RunConfig, script: str) -> int:
    """One run from its config to its report. Returns the exit code. script: whose command it is."""
    from train import parts, pictures, report
    from train.loop import train
    from train.machine.distributed import processes
    from train.saving.initial_weights import find_initial_weights
    from train.saving.run_directory import find_start

    # 1. This process and the others, if torchrun started several.
    with processes(config.train.parallel, config.train.device) as world:
        parts.check(config, world)

        # 2. Whether this run is new, half-way or finished, and where it computes.
        start = world.first(lambda: find_start(config))
        if start.finished:
            world.say(report.result(config.directory))
            return 0
        device = parts.device_for(config, start)
        initial = find_initial_weights(config) if start.checkpoint is None else None

        # 3. Text -> tokens -> rows.
        material = parts.read_data(config, world)

        # 4. The network. The tokenizer says how many ids there are and which are special.
        tokenizer = material[0].tokenizer
        config = parts.with_tokenizer(config, tokenizer)
        lm = parts.build_model(config, device, world, initial, tokenizer)

        # 5. How gradients become steps; go on where the run stopped.
        run = parts.build_run(config, start, device, world, material, lm, script)

        # 6. Train.
        exit_code = 1
        try:
            exit_code = train(run)
            if exit_code == 0:
                pictures.draw(run)  # while the tracker is still open
        finally:
            run.tracker.close(exit_code)

        # 7. What came of it.
        return parts.finish(run, exit_code)


if __name__ == "__main__":
    exit_on_bad_input(main)
