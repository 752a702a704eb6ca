"""The same model in transformers, to be measured beside ours."""

from __future__ import annotations

import tempfile
from typing import Any

from configs.loader import InputError
from model import LanguageModel, save


def in_transformers(lm: LanguageModel, **options: Any) -> Any:
    """transformers' model of identical weights, read from the directory that Headlight saves.

    options: of `from_pretrained`. Raises InputError without that package.
    """
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise InputError("--versus transformers needs that package: pip install -r requirements-dev.txt") from None

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        save(lm, directory)
        return AutoModelForCausalLM.from_pretrained(directory, **options)
