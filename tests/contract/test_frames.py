"""One decoder for every JSON text: what must never be guessed at is refused, and the refusal says what it was."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.frames import MAX_DEPTH, MAX_FRAME_CHARS, FrameError, Mirror, convert, decode_frame, encode_frame

U64 = 2**64 - 1


class Row(msgspec.Struct, frozen=True):
    """A small type to convert to."""

    seq: int
    name: str = ""
    ok: bool = False
    part: float = 0.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"role": "viewer", "role": "operator"}', "'role' appears twice"),
        ('{"a": {"b": [{"c": 1, "c": 1}]}}', "'c' appears twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' appears twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": Infinity}', "Infinity is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": -1e999}', "not finite"),
        (f'{{"a": {U64 + 1}}}', "outside"),
        (f'{{"a": {-(2**63) - 1}}}', "outside"),
        (f'{{"a": {"9" * 5000}}}', "outside"),
        (f'{{"a": -{"9" * 5000}}}', "outside"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"\\udfff": 1}', "lone surrogate"),
        ('{"a": "\ud800"}', "lone surrogate"),
        ("[]", "list, not an object"),
        ("null", "NoneType, not an object"),
        ('"text"', "str, not an object"),
        ("1", "int, not an object"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a": 1} {"b": 2}', "not JSON"),
        ('{"a": 01}', "not JSON"),
        ('{"a": -0}', "-0 is no integer"),
        ('{"a": "\x00"}', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1,}', "not JSON"),
    ],
)
def test_what_must_not_be_guessed_at_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        decode_frame(text)


@pytest.mark.parametrize("value", [0, 1, -1, U64, 2**63, -(2**63)])
def test_integers_up_to_u64_come_back_exactly(value: int) -> None:
    tree = decode_frame(f'{{"a": {value}}}')
    assert tree == {"a": value}
    assert isinstance(tree["a"], int)


def nested(depth: int) -> str:
    return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def test_nesting_is_accepted_to_its_limit_and_refused_beyond() -> None:
    decode_frame(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(FrameError, match=f"deeper than {MAX_DEPTH}"):
            decode_frame(nested(depth))


def test_brackets_inside_text_are_no_nesting() -> None:
    text = '[{"\\' * 200
    assert decode_frame(json.dumps({"a": text, "b": [1]})) == {"a": text, "b": [1]}


def test_wide_frames_are_not_deep() -> None:
    wide = {"a": [[n] for n in range(5000)]}
    assert decode_frame(json.dumps(wide)) == wide


def test_a_frame_over_its_length_and_bytes_instead_of_text_are_refused() -> None:
    with pytest.raises(FrameError, match=str(MAX_FRAME_CHARS)):
        decode_frame('{"a": "' + "x" * MAX_FRAME_CHARS + '"}')
    with pytest.raises(FrameError, match="not bytes"):
        decode_frame(b"{}")  # type: ignore[arg-type]  # what a binary websocket frame would hand over


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({"seq": True}, "seq"),
        ({"seq": "1"}, "seq"),
        ({"seq": 1.5}, "seq"),
        ({"seq": None}, "seq"),
        ({"seq": 1, "ok": 1}, "ok"),
        ({"seq": 1, "name": 5}, "name"),
        ({"name": "x"}, "seq"),
    ],
)
def test_a_wrong_type_is_refused_and_names_the_row_and_the_field(tree: dict[str, Any], field: str) -> None:
    with pytest.raises(FrameError, match=rf"row 7: .*{field}"):
        convert(tree, Row, "row 7")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), U64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), PLAIN, max_size=4))
def test_what_is_encoded_is_decoded_again(tree: dict[str, Any]) -> None:
    assert decode_frame(encode_frame(tree)) == tree
    assert decode_frame(json.dumps(tree)) == tree


@given(st.text(max_size=200) | st.text('{}[]",:\\u0123d8Nae+-. ', max_size=60))
def test_any_text_is_an_object_or_a_frame_error(text: str) -> None:
    try:
        tree = decode_frame(text)
    except FrameError:
        return
    encode_frame(tree)


class Tree(msgspec.Struct, frozen=True):
    """A type with room for anything."""

    name: str
    value: Any = None


OWN: Mirror[Tree] = Mirror(Tree)


VALUES = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text()


@given(st.text(), st.recursive(VALUES, st.lists, max_leaves=9))
def test_the_mirror_reads_what_this_release_writes_as_the_rules_do(name: str, value: object) -> None:
    text = encode_frame(Tree(name, value))
    assert OWN.read(text) == convert(decode_frame(text), Tree, "tree")


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"a","name":"a","value":null}',
        '{"name":"a","value":{"k":1,"k":1}}',
        '{"name":"a","value":NaN}',
        '{"name":"a","value":1e999}',
        f'{{"name":"a","value":{U64 + 1}}}',
        f'{{"name":"a","value":{"9" * 400}}}',
        '{"name":"\\ud800","value":null}',
        '{"name":"\ud800","value":null}',
        '{"name":"a","value":null,"new":1}',
        '{"name": "a","value":null}',
        '{"value":null,"name":"a"}',
        '{"name":7,"value":null}',
        '{"name":"a"}',
        "",
    ],
)
def test_the_mirror_says_nothing_of_any_other_frame(text: str) -> None:
    assert OWN.read(text) is None


@pytest.mark.parametrize("name", ["plain", "9" * 40, "a [", "}]", '"[', "\\", '\\"{', "[]" * 40, "{" * 40])
def test_the_mirror_counts_depth_and_never_the_brackets_in_a_text(name: str) -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    assert OWN.read(encode_frame(Tree(name, deep))) == Tree(name, deep)
    assert OWN.read(encode_frame(Tree(name, [deep]))) is None


def test_the_mirror_keeps_the_limit_of_a_frame() -> None:
    text = encode_frame(Tree("a" * 100))
    assert OWN.read(text, len(text)) is not None
    assert OWN.read(text, len(text) - 1) is None
