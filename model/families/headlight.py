"""Any parts together. transformers has no such model, so only Headlight reads the directory, which says so."""

from __future__ import annotations

from pathlib import Path

from configs.files import DamagedFile
from model.config import ModelConfig
from model.families.family import PLAIN, SAME_NAME, Family, Fields, model_config

NOTE = "Saved with loadable_elsewhere: false, so transformers has no such model: load it with Headlight (model.load)."
BESIDE = ("architectures", "model_type", "note", "dtype", "torch_dtype")


class _Headlight(Family):
    """config.json has the fields of ModelConfig themselves."""

    def write(self, config: ModelConfig) -> Fields:
        fields = config.model_dump(exclude={"attn_implementation"})
        return {"architectures": [self.architecture], "model_type": self.model_type, "note": NOTE} | fields

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """Raises ValueError that names the file, also for a part that this version of Headlight does not know."""
        if missing := [name for name in SAME_NAME if name not in fields]:
            raise DamagedFile(f"{file}: {missing[0]} is missing")
        return model_config({name: value for name, value in fields.items() if name not in BESIDE}, file)


HEADLIGHT = _Headlight("headlight", "HeadlightLanguageModel", needs={"loadable_elsewhere": False}, words=tuple(PLAIN))
