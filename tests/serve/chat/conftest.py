"""Runs that the page's chat can look into, and a server of them."""

import pytest

from tests.serve.chat.chat_runs import make_runs
from tests.serve.conftest import serving


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    return make_runs(folder, tmp_path_factory.mktemp("looked_into"))


@pytest.fixture(scope="module")
def address(runs):
    with serving(runs) as (found, _):
        yield found
