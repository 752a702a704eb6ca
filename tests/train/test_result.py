"""result.json: whole or absent."""

import pytest

from train.saving.result import forget_result, read_result, write_result


def test_a_result_is_read_as_it_was_written_until_it_is_forgotten(tmp_path):
    assert read_result(tmp_path) is None
    write_result(tmp_path, {"step": 12, "validation": {"loss": 1.5}})
    write_result(tmp_path, {"step": 14, "validation": None})
    assert read_result(tmp_path) == {"step": 14, "validation": None}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
    forget_result(tmp_path)
    forget_result(tmp_path)
    assert read_result(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_result_that_cannot_be_read_is_none(text, tmp_path):
    (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path) is None


def test_a_failed_write_leaves_the_result_before_it(tmp_path):
    write_result(tmp_path, {"step": 12})
    with pytest.raises(TypeError):
        write_result(tmp_path, {"step": object()})
    assert read_result(tmp_path) == {"step": 12}
