"""Ranges are checked in one place, to the last value."""

from __future__ import annotations

from typing import Any

import pytest

from backend.contract.numbers import U64_MAX, BadValue, check_port, check_seconds, check_text, check_u64


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1, 2**63, U64_MAX])
def test_u64_holds_up_to_its_edges(value: int) -> None:
    assert check_u64("seq", value) == value


@pytest.mark.parametrize("value", [-1, U64_MAX + 1, -(2**63), 10**5000], ids=["-1", "2^64", "-2^63", "5000 digits"])
def test_beyond_u64_is_refused_by_name(value: int) -> None:
    with pytest.raises(ValueError, match=r"seq is .*, outside"):
        check_u64("seq", value)


@pytest.mark.parametrize("value", [True, False, "1", 1.0, None, float("nan")])
def test_what_is_no_integer_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ValueError, match="not an integer"):
        check_u64("seq", value)


def test_a_least_value_moves_the_lower_edge() -> None:
    assert check_u64("generation", 1, least=1) == 1
    with pytest.raises(ValueError, match=r"generation is 0, outside 1\.\.2\^64-1"):
        check_u64("generation", 0, least=1)


@pytest.mark.parametrize("value", [1, 80, 65_535])
def test_a_port_holds_its_edges(value: int) -> None:
    assert check_port("port", value) == value


@pytest.mark.parametrize("value", [0, 65_536, -1, True])
def test_what_is_no_port_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="port"):
        check_port("port", value)


@pytest.mark.parametrize("value", [0.001, 1, 3600])
def test_a_length_of_time_holds_its_edges(value: float) -> None:
    assert check_seconds("seconds", value, most=3600) == value


@pytest.mark.parametrize("value", [0, -1, 3600.001, 1e300, float("inf"), float("nan")])
def test_what_is_no_length_of_time_is_refused_with_both_values(value: float) -> None:
    with pytest.raises(BadValue) as refused:
        check_seconds("seconds", value, most=3600)
    assert str(refused.value) == f"seconds is {value:.10g}; expected more than 0 and at most 3600 seconds"


def test_an_empty_text_is_refused_with_the_reason() -> None:
    assert check_text("why", "fan") == "fan"
    with pytest.raises(BadValue, match="why is empty: it is kept"):
        check_text("why", "", "it is kept")
