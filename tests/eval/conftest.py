"""Small models of every kind, on the disk and beside transformers, for the tests of the tasks."""

import pytest

from tests.eval.scoring import MODELS, Reference, make_checkpoints


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return make_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, checkpoints):
    return checkpoints[request.param]


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)
