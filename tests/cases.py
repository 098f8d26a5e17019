"""Many cases in one test, which share what its fixtures make."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Test = Callable[..., None]


def shared_cases(
    names: str | Sequence[str],
    cases: Iterable[Any],
    *,
    ids: Iterable[Any] | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Callable[[Test], Test]:
    """Like ``pytest.mark.parametrize``, but as subtests of one test, with the same objects of its fixtures.

    For cases that change nothing, such as refused requests: a key, a table and a client for each take longer
    than the request. ``prepare`` is called once, before the first case. ``ids`` name cases whose values say
    too little. Failed cases are reported separately.
    """
    parameters = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    values = [_values(case, parameters) for case in cases]
    labels = [None] * len(values) if ids is None else [str(label) for label in ids]

    def decorate(function: Test) -> Test:
        signature = inspect.signature(function)
        fixtures = {n: p for n, p in signature.parameters.items() if n not in parameters}
        is_nested = "subtests" in fixtures
        fixtures["subtests"] = inspect.Parameter(
            "subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD
        )

        @functools.wraps(function)
        def test(**arguments: Any) -> None:
            subtests = arguments["subtests"] if is_nested else arguments.pop("subtests")
            prepare()
            for label, case in zip(labels, values, strict=True):
                with subtests.test(label, **({} if label else case)):
                    function(**arguments, **case)

        test.__signature__ = signature.replace(parameters=[*fixtures.values()])  # type: ignore[attr-defined]
        return test

    return decorate


def _values(case: Any, parameters: list[str]) -> dict[str, Any]:
    values = (case,) if len(parameters) == 1 else tuple(case)
    return dict(zip(parameters, values, strict=True))
