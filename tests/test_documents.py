"""Documents: what fits is read as it was written, and what does not is one sentence with its place."""

from __future__ import annotations

import json
import os
from typing import Annotated, ClassVar, Literal

import attrs
import pytest
import torch

from cswf_core.documents import (
    Count,
    Digest,
    FileName,
    MisfitError,
    Rule,
    Size,
    TensorForm,
    parse_json,
    read_document,
    read_json,
    require_forms,
    seal,
    structured,
    unseal,
)
from cswf_core.errors import RunError


@attrs.frozen(kw_only=True)
class Part:
    open_ended: ClassVar[bool] = True
    name: FileName
    sha256: Digest | None = None


@attrs.frozen(kw_only=True)
class Whole:
    kind: Literal["a", 1]
    sizes: tuple[Size, ...]
    parts: dict[str, Part] = attrs.field(factory=dict)
    share: Annotated[float, Rule("at most 1", lambda share: share <= 1)] = 0.5
    count: Count | None = None
    true: bool = False

    def __attrs_post_init__(self) -> None:
        if self.count == 13:
            raise MisfitError("nobody has 13")


GOOD = {"kind": "a", "sizes": [1, 2], "parts": {"x": {"name": "file.json", "more": 1}}, "share": 1}


def test_what_fits_is_an_object_of_the_class():
    made = structured(GOOD, Whole)
    assert made == Whole(kind="a", sizes=(1, 2), parts={"x": Part(name="file.json")}, share=1.0)
    assert isinstance(made.share, float)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "b"}, 'kind must be one of "a", 1, got "b"'),
        ({"kind": True}, 'kind must be one of "a", 1, got true'),
        ({"sizes": [1, 0]}, "sizes.1 must be 1 or more, got 0"),
        ({"sizes": [1, 2.0]}, "sizes.1 must be a whole number, got 2.0"),
        ({"sizes": [True]}, "sizes.0 must be a whole number, got true"),
        ({"sizes": [2**63]}, "sizes.0 must be a whole number, got 9223372036854775808"),
        ({"sizes": {}}, "sizes must be a list, got an object"),
        ({"parts": {"x": {"name": "../file"}}}, "parts.x.name must be the name of a file in the same folder"),
        ({"parts": {"x": {"name": ".."}}}, "parts.x.name must be the name of a file in the same folder"),
        ({"parts": {"x": {"name": "a", "sha256": "A" * 64}}}, "parts.x.sha256 must be a SHA-256 of 64 digits"),
        ({"parts": []}, "parts must be an object, got a list"),
        ({"share": 2}, "share must be at most 1, got 2.0"),
        ({"share": "1"}, 'share must be a number, got "1"'),
        ({"share": 10**309}, "share must be a number, got 1000"),
        ({"count": -1}, "count must be 0 or more, got -1"),
        ({"count": 13}, "nobody has 13"),
        ({"true": 1}, "true must be true or false, got 1"),
        ({"surprise": 1}, 'it has an unknown key "surprise"'),
        ({"parts": {"\ud800": {"name": "a"}}}, "parts must be a text that UTF-8 can hold"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(change, said):
    with pytest.raises(MisfitError, match=said.replace(".", r"\.").replace("(", r"\(")):
        structured({**GOOD, **change}, Whole)


def test_what_is_missing_is_named():
    with pytest.raises(MisfitError, match="it lacks 'sizes'"):
        structured({"kind": "a"}, Whole)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[NaN]", "NaN is no number of JSON"),
        ("[1e999]", "1e999 is too large a number"),
        ("9" * 5000, "a number has 5,000 digits"),
        ('{"a": 1, "a": 2}', 'the key "a" is there twice'),
        ("[" * 100_000, "nested deeper than 40 levels"),
        ("[" * 42 + "]" * 42, "nested deeper than 40 levels"),
    ],
)
def test_what_json_has_not_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_a_file_is_read_whole_or_refused_with_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(GOOD))
    assert read_document(path, Whole) == structured(GOOD, Whole)
    path.write_text(json.dumps({**GOOD, "kind": 2}))
    with pytest.raises(RunError, match=r"whole\.json is damaged: kind must be one of .*; try again"):
        read_document(path, Whole, advice="; try again")
    path.write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"whole\.json cannot be read"):
        read_document(path, Whole)
    monkeypatch.setattr("cswf_core.documents.LARGEST", 10)
    path.write_text(json.dumps(GOOD))
    with pytest.raises(RunError, match="it has more than 10 bytes"):
        read_document(path, Whole)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no ordinary file"):
        read_json(tmp_path / "pipe")


def test_a_seal_is_broken_by_any_change_and_cannot_be_left_out():
    sealed = json.loads(json.dumps(seal(GOOD)))
    assert unseal(sealed) == GOOD
    with pytest.raises(MisfitError, match="its own checksum differs"):
        unseal({**sealed, "share": 0.9})
    with pytest.raises(MisfitError, match="lacks its own checksum"):
        unseal(GOOD)


def test_tensors_have_the_form_that_they_must_have():
    forms = {
        "a": TensorForm(torch.int64, (None, 2)),
        "b": TensorForm(torch.is_floating_point, (), optional=True),
    }
    require_forms({"a": torch.zeros(3, 2, dtype=torch.int64), "other": torch.zeros(1)}, forms, "it")
    for tensors, said in (
        ({}, "it is damaged: it lacks the tensor 'a'"),
        ({"a": torch.zeros(3, 2)}, "the tensor 'a' should be n×2 of int64, and is 3×2 of float32"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, "should be n×2 of int64, and is 2 of int64"),
    ):
        with pytest.raises(RunError, match=said):
            require_forms(tensors, forms, "it")
