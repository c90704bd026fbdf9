"""Each case of `tests/cases`, folded in memory."""

import msgspec
import pytest

from support import cases


@pytest.mark.parametrize("name", cases.NAMES)
def test_the_fold_gives_what_the_case_expects(name):
    case = cases.load(name)
    outcome = cases.log_of(case).fold(cases.settings_of(case))
    cases.assert_results(msgspec.to_builtins(outcome.results), case)
    assert outcome.dead_letters == [(one["record"], one["reason"]) for one in case["expect"].get("dead_letters", [])]
    assert [step for *_, step in outcome.open_steps] == case["expect"].get("open", [])
