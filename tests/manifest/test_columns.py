"""One type for each carried-through column."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fishcli.errors import UsageError
from fishcli.manifest.columns import COLUMNS_LIMIT, ColumnKinds, as_kind


def kind_of(*values: Any) -> str:
    kinds = ColumnKinds()
    for value in values:
        kinds.note({"x": value})
    return dict(kinds.items())["x"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], "empty"),
        ([None, True], "bool"),
        ([1, None, 2], "int"),
        ([1, 2.5], "float"),
        ([2.5, None, 1], "float"),
        (["a", None], "string"),
        ([1, "a"], "json"),
        ([True, 1], "json"),
        ([[1]], "json"),
        ([2**70], "json"),
        (["a", 1, None, "b"], "json"),
    ],
)
def test_the_narrowest_kind_that_holds_all_values(values: list[Any], kind: str) -> None:
    assert kind_of(*values) == kind


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.lists(SCALARS, min_size=1))
def test_every_value_converts_to_the_kind_of_its_column(values: list[Any]) -> None:
    kind = kind_of(*values)
    types = {"bool": bool, "int": int, "float": float, "string": str, "json": str}
    for value in values:
        converted = as_kind(value, kind)  # type: ignore[arg-type]
        assert converted is None if value is None else type(converted) is types[kind]


def test_names_that_are_really_values_are_refused() -> None:
    kinds = ColumnKinds()
    with pytest.raises(UsageError, match=f"more than {COLUMNS_LIMIT}"):
        for n in range(COLUMNS_LIMIT + 1):
            kinds.note({f"x{n}": 1})
