"""A fleet may have a thousand hosts: what is said of them stays readable, and in the order in which people count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.naming import by_number, few_of, nearest, no_such, ranks_together, said_by


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (["tiny-10", "tiny-2", "tiny-1"], ["tiny-1", "tiny-2", "tiny-10"]),
        (["gpu-10-a", "gpu-9-b", "gpu-9-a"], ["gpu-9-a", "gpu-9-b", "gpu-10-a"]),
        (["b", "a10", "a9", "a"], ["a", "a9", "a10", "b"]),
        (["007", "7", "08", "1"], ["1", "007", "7", "08"]),
        (["x" + "9" * 5000, "x1"], ["x1", "x" + "9" * 5000]),
    ],
)
def test_names_are_in_the_order_in_which_people_count(names: list[str], ordered: list[str]) -> None:
    assert sorted(names, key=by_number) == ordered


@given(st.lists(st.text(st.sampled_from("a1٣0-"), max_size=6), unique=True))
def test_the_order_is_one_and_the_same_however_the_names_came(names: list[str]) -> None:
    ordered = sorted(names, key=by_number)
    names.reverse()
    assert sorted(names, key=by_number) == ordered


def test_a_long_list_is_cut_and_says_by_how_much() -> None:
    assert few_of([]) == "none"
    assert few_of(["a", "b"], 2) == "a, b"
    assert few_of([f"gpu-{n}" for n in range(1000)], 2) == "gpu-0, gpu-1 and 998 more"


def test_a_wrong_name_hears_what_there_is_and_what_was_probably_meant() -> None:
    assert no_such("host", "gpu_7", ["gpu-10", "gpu-7"]) == (
        "there is no host 'gpu_7'; known: gpu-7, gpu-10. Did you mean gpu-7?"
    )
    assert no_such("host", "x", []) == "there is no host 'x'; known: none"
    assert nearest("zzz", ["gpu-1"]) == ""
    words = no_such("replica", "big-5000", (f"big-{n}" for n in range(1000)))
    assert words.endswith("and 992 more. Did you mean big-500?")
    assert len(words) < 200


@pytest.mark.parametrize(
    ("sentences", "together"),
    [
        ([], []),
        (["rank 2 on host-b: lost"], ["rank 2 on host-b: lost"]),
        ([f"rank {n} on a: lost" for n in (0, 1, 2, 5)], ["ranks 0-2, 5 on a: lost"]),
        (["rank 1 on a: lost", "rank 2 on b: lost"], ["rank 1 on a: lost", "rank 2 on b: lost"]),
        (
            ["rank 3: no host has reported it", "rank 4: no host has reported it"],
            ["ranks 3-4: no host has reported it"],
        ),
        (["unresponsive: x", "rank 0 says ready", "unresponsive: x"], ["unresponsive: x", "rank 0 says ready"]),
    ],
)
def test_what_is_said_of_ranks_alike_is_said_once(sentences: list[str], together: list[str]) -> None:
    assert ranks_together(sentences) == together


def test_what_many_say_alike_is_said_once() -> None:
    assert said_by({"a": "cordoned", "b": "full", "c": "full"}) == "a: cordoned; b, c: full"
    many = {f"gpu-{n}": "there is no such file" for n in range(1000)}
    assert said_by(many) == "gpu-0, gpu-1, gpu-2 and 997 more: there is no such file"
    each_another = {f"gpu-{n}": f"pid {n} holds it" for n in range(1000)}
    assert said_by(each_another).endswith("gpu-5: pid 5 holds it; and 994 more say other things")
    assert said_by({}) == ""
