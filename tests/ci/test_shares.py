"""Cases that only `make engines` runs."""

import pytest

from tests.shares import daily, nightly


def test_cases_that_are_not_chosen_are_nightly():
    assert daily([1, 2, 3], 2) == [nightly(1), 2, nightly(3)]
    assert [mark.name for mark in nightly(1).marks] == ["engines"]


@pytest.mark.parametrize("chosen", [(), (4,), (1, 4)])
def test_a_case_that_does_not_exist_cannot_be_chosen(chosen):
    with pytest.raises(ValueError, match="none of the cases"):
        daily([1, 2, 3], *chosen)
