"""Every case of every class ends well: a few of each class in `make test`, every sixth in `make test-all`, and all of
them in `make attack`."""

import os
import shutil

import pytest

from tests.attack.attack import CLASSES, cases_of, run, some_of

QUICK = 60  # every 60th case
SHARE = int(os.environ.get("HEADLIGHT_ATTACK_SHARE", "6"))  # every sixth case; 1: all
CHUNK = 50  # cases that one slow test runs


def chunks():
    return [(name, first) for name in CLASSES for first in range(0, len(some_of(cases_of(name), SHARE)), CHUNK)]


@pytest.mark.parametrize("name", CLASSES)
def test_some_cases_of_the_class_end_well(name, tmp_path, record_property):
    attack(some_of(cases_of(name), QUICK), name, tmp_path, record_property)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first"), chunks())
def test_the_cases_of_the_class_end_well(name, first, tmp_path, record_property):
    attack(some_of(cases_of(name), SHARE)[first : first + CHUNK], name, tmp_path, record_property)


def attack(cases, name, folder, record_property):
    endings = []
    for number, case in enumerate(cases):
        endings.append(run(case, folder / f"case{number}"))
        shutil.rmtree(folder / f"case{number}", ignore_errors=True)
    record_property("attack", {"name": name, "kinds": [ending.kind for ending in endings]})
    failed = [f"{one.case.name}: {one.why}\n    {one.output[-1500:]}" for one in endings if one.kind == "failed"]
    assert not failed, f"{len(failed)} of {len(endings)}:\n" + "\n".join(failed)
