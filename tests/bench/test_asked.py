from pathlib import Path

import pytest

from dnformer.bench.asked import check_cases, draft
from dnformer.errors import ConfigError


def test_check_cases_names_the_nearest_case() -> None:
    check_cases(["star"], ("star", "block"))
    with pytest.raises(ConfigError, match="no case 'stra'; did you mean 'star'"):
        check_cases(["star", "stra"], ("star", "block"))
    with pytest.raises(ConfigError, match="no case 'x'; there are star, block"):
        check_cases(["x"], ("star", "block"))


def test_draft_is_a_module_with_the_functions_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "draft.py"
    path.write_text("def sample():\n    return 3\n")
    assert draft(str(path), ("sample",)).sample() == 3
    with pytest.raises(ConfigError, match=r"draft.py: has no function graph"):
        draft(str(path), ("sample", "graph"))
    with pytest.raises(ConfigError, match=r"none.py: there is no such file"):
        draft(str(tmp_path / "none.py"), ("sample",))
    text = tmp_path / "draft.txt"
    text.write_text("")
    with pytest.raises(ConfigError, match=r"draft.txt: is no Python file"):
        draft(str(text), ("sample",))
