"""What goes wrong in a step, on purpose: for the tests of faults, on a CPU and on a GPU."""

import train.loop


def at_step(monkeypatch, steps, action) -> list:
    """Call action(run) just before each of these steps; the list grows with its results."""
    step, results = train.loop.forward_backward, []

    def watched(run, *arguments, **options):
        undo = None
        if run.state.step in steps:
            undo = action(run)
            results.append(run)
        figures = step(run, *arguments, **options)
        if undo is not None:
            undo.remove()
        return figures

    monkeypatch.setattr(train.loop, "forward_backward", watched)
    return results


def bad_loss(run):
    def spoilt(module, inputs, output):
        (loss_sum, count), auxiliary = output
        return (loss_sum * float("nan"), count), auxiliary

    return run.lm.register_forward_hook(spoilt)


def bad_gradient(run):
    weight = run.lm.model.layers[1].mlp.up_proj.weight
    return weight.register_hook(lambda gradient: gradient * float("inf"))
