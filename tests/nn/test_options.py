"""Options of layers: what is not allowed is named with what is."""

import pytest

from dnformer.errors import ConfigError
from dnformer.nn.options import check_choice, check_share


def test_check_choice_names_value_and_choices():
    check_choice("norm", "pre", ("pre", "post"))
    with pytest.raises(ConfigError, match=r"norm.*'mid'.*pre.*post"):
        check_choice("norm", "mid", ("pre", "post"))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_check_share_refuses(share):
    with pytest.raises(ConfigError, match="dropout"):
        check_share("dropout", share)
