import pytest

from tests.train.helpers import pretrain, write_config


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A finished run to start from, which no test changes."""
    folder = tmp_path_factory.mktemp("base")
    pretrain(write_config(folder, name="base", eval={"hooks": []}))
    return folder / "runs/base"
