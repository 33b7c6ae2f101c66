"""The file format: what goes in comes out to the bit, and nothing else is ever loaded."""

import hashlib
import json
import os
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import save

from agp import to_backend
from agp.io import load_checkpoint, save_checkpoint
from agp.io._container import HEADER_BYTES

REFUSED = r"run\.safetensors is not a checkpoint of agp \(.+\); name another file, or remove it to start afresh\.$"
TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def sealed(arrays, text):
    """A file with these arrays and any structure, and the digest that belongs to them."""
    table = [[name, x.dtype.name, list(x.shape)] for name, x in sorted(arrays.items())]
    content = json.dumps([text, table]).encode() + b"".join(x.tobytes() for _, x in sorted(arrays.items()))
    return save(arrays, {"agp": text, "sha256": hashlib.sha256(content).hexdigest()})


def structure(arrays, /, facts=None, **change):
    layout = {name: name for name in arrays}
    return json.dumps({"kind": "checkpoint", "version": 1, "arrays": layout, "facts": facts or {}} | change)


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One file for all examples of a test."""
    return tmp_path_factory.mktemp("files") / "run.safetensors"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def come_back(path, arrays, facts=None):
    save_checkpoint(path, arrays, facts or {})
    return load_checkpoint(path)[0]


def assert_equal(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


# -- what goes in comes out ------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_arrays_of_every_type_and_shape_come_back_to_the_bit(data, shared):
    dtype = data.draw(st.sampled_from(TYPES))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    x = data.draw(hnp.arrays(dtype, shape))
    assert_equal(come_back(shared, {"x": x})["x"], x)


@pytest.mark.parametrize(
    "order",
    [np.asfortranarray, lambda x: x[::2, ::-1], lambda x: x.T, lambda x: x.astype(">f8"), lambda x: x[0, 0]],
    ids=["fortran", "strided", "transposed", "big-endian", "scalar"],
)
def test_the_order_in_memory_does_not_matter(order, path):
    x = order(np.arange(12.0).reshape(4, 3))
    found = come_back(path, {"x": x})["x"]
    np.testing.assert_array_equal(found, x)
    assert found.dtype == np.float64
    with safe_open(path, framework="np") as file:  # to every reader of the format
        np.testing.assert_array_equal(file.get_tensor("x"), x)


@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_other_libraries_are_saved(library, dtype, path):
    pytest.importorskip(library)
    x = np.arange(6.0, dtype=dtype).reshape(2, 3)
    moved = to_backend(x, library, dtype=dtype)
    found = come_back(path, {"x": moved, "t": moved.T, "scalar": moved[0, 1]})
    assert_equal(found["x"], x)
    np.testing.assert_array_equal(found["t"], x.T)
    assert found["scalar"].shape == ()


def test_nested_names_of_every_kind_come_back(path):
    x, y, z = np.ones(2), np.zeros(3), np.ones((0, 2))
    arrays = {"a/b": x, "a": {"b": y, "": {"~1": z}}, "é\n": {"empty": {}}, "a~1b": z}
    found = come_back(path, arrays)
    assert found.keys() == arrays.keys()
    assert_equal(found["a/b"], x)
    assert_equal(found["a"]["b"], y)
    assert_equal(found["a"][""]["~1"], z)
    assert found["é\n"] == {"empty": {}}


def test_facts_come_back(path):
    facts = {"step": 4, "numbers": [0.1, -1e-300, True, None], "text": "é \ud800 \x00", "deep": {"er": {}}}
    save_checkpoint(path, {}, facts)
    assert load_checkpoint(path) == ({}, facts)


# -- what cannot be saved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "facts", "message"),
    [
        ({"a": {"x": np.ones(2, complex)}}, {}, "complex128, which files do not support; convert it to one of bool, "),
        ({"a": {"x": 1.0}}, {}, "a/x cannot be saved: .*x is a float"),
        ({"a": {1: np.ones(2)}}, {}, "a/1 cannot be saved: dictionary keys must be text"),
        ({"__metadata__": np.ones(2)}, {}, "no array can have the name __metadata__"),
        ({}, {"x": float("nan")}, "JSON"),
        ({}, {"x": "y" * HEADER_BYTES}, f"but at most {HEADER_BYTES} fit in a file; shorten"),
    ],
    ids=["complex", "float", "key", "reserved", "nan", "large"],
)
def test_what_no_file_can_hold_is_refused_before_anything_is_written(arrays, facts, message, path):
    with pytest.raises((TypeError, ValueError), match=message):
        save_checkpoint(path, arrays, facts)
    assert list(path.parent.iterdir()) == []


# -- what is not loaded ----------------------------------------------------------------------------------------------

ONE = {"x": np.ones(3)}


def nested_text(depth):
    return "[" * depth + "]" * depth


TEXTS = {"agp": structure({}), "sha256": "0" * 64}
BFLOAT = {"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}, "__metadata__": TEXTS}
FILES = {
    "empty": b"",
    "short": b"\x01\x02",
    "text": b"this is not a checkpoint",
    "zeros": bytes(100),
    "npz": b"PK\x03\x04" + bytes(200),
    "no-end": (2**63).to_bytes(8, "little") + b"{}",
    "long-header": with_header(b" " * HEADER_BYTES + b"{}"),
    "no-metadata": save(ONE),
    "foreign-metadata": save(ONE, {"format": "pt"}),
    "no-digest": save(ONE, {"agp": structure(ONE)}),
    "wrong-digest": save(ONE, {"agp": structure(ONE), "sha256": "0" * 64}),
    "eight-terabytes": with_header({"x": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}}),
    "overflow": with_header({"x": {"dtype": "F64", "shape": [2**62, 0, 2**62], "data_offsets": [0, 0]}}),
    "negative": with_header({"x": {"dtype": "F64", "shape": [-1], "data_offsets": [0, 0]}}),
    "dimensions": with_header({"x": {"dtype": "F64", "shape": [1] * 100, "data_offsets": [0, 8]}}, bytes(8)),
    "shape": with_header({"x": {"dtype": "F64", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "deep-header": with_header(nested_text(100_000).encode()),
    "bfloat16": with_header(BFLOAT, bytes(2)),
    "deep-structure": sealed({}, nested_text(100_000)),
    "no-json": sealed(ONE, "{"),
    "number": sealed(ONE, "7"),
    "list": sealed(ONE, "[1, 2]"),
    "nan": sealed(ONE, structure(ONE, facts={"x": float("nan")})),
    "long-number": sealed(ONE, structure(ONE).replace("1", "1" * 10_000, 1)),
    "kind": sealed(ONE, structure(ONE, kind="model")),
    "version": sealed(ONE, structure(ONE, version=2)),
    "no-facts": sealed(ONE, structure(ONE, facts=[1])),
    "no-arrays": sealed(ONE, structure(ONE, arrays=None)),
    "arrays-list": sealed(ONE, structure(ONE, arrays=["x"])),
    "arrays-text": sealed(ONE, structure(ONE, arrays="x")),
    "unknown-array": sealed(ONE, structure(ONE, arrays={"x": "x", "y": "y"})),
    "unused-array": sealed(ONE, structure(ONE, arrays={})),
    "array-twice": sealed(ONE | {"y": np.ones(1)}, structure(ONE, arrays={"x": "x", "z": "x"})),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_other_files_are_refused_in_one_sentence_and_cheaply(kind, path):
    path.write_bytes(FILES[kind])
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(ValueError, match=REFUSED):
            load_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**25
    assert time.perf_counter() - began < 5.0


def test_truth_values_are_zero_or_one(path):
    whole = sealed({"x": np.asarray([True, False])}, structure(["x"]))
    path.write_bytes(whole)
    assert load_checkpoint(path)[0]["x"].tolist() == [True, False]
    path.write_bytes(whole[:-1] + b"\x07")
    with pytest.raises(ValueError, match=REFUSED):
        load_checkpoint(path)


POSIX_KINDS = ("fifo", "loop", "dangling", "device") if os.name == "posix" else ()


@pytest.mark.parametrize("kind", ["absent", "directory", *POSIX_KINDS, "unreadable"])
def test_what_is_no_ordinary_file_is_refused_and_never_waited_for(kind, path, monkeypatch):
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(path.with_name("nothing"))
        case "device":
            path.symlink_to("/dev/zero")
        case "unreadable":
            path.write_bytes(sealed({}, structure({})))

            def refused(*args, **kwargs):
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr("pathlib.Path.open", refused)
    absent = kind in ("absent", "dangling")
    with pytest.raises(ValueError, match=r"^there is no file .*; name another file, or remove" if absent else REFUSED):
        load_checkpoint(path)


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_to_a_file_is_followed(path):
    save_checkpoint(path, {"x": np.ones(3)}, {})
    link = path.with_name("link")
    link.symlink_to(path)
    assert load_checkpoint(link)[0]["x"].tolist() == [1.0, 1.0, 1.0]


WHOLE = sealed({"x": np.arange(12.0).reshape(4, 3), "y": np.asarray([True])}, structure("xy", {"step": 3}))


@pytest.mark.slow
@given(position=st.integers(0, len(WHOLE) - 1), change=st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_changes_nothing_or_is_found(position, change, shared):
    shared.write_bytes(WHOLE)
    arrays, facts = load_checkpoint(shared)
    changed = bytearray(WHOLE)
    changed[position] ^= change
    shared.write_bytes(bytes(changed))
    try:
        found, others = load_checkpoint(shared)
    except ValueError as error:
        assert str(error).startswith(f"{shared} is not a checkpoint of agp (")  # noqa: PT017
    else:  # white space in the header
        assert others == facts
        assert_equal(found["x"], arrays["x"])
        assert_equal(found["y"], arrays["y"])


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_truncated_files_are_refused(length, path):
    path.write_bytes(WHOLE[:length])
    with pytest.raises(ValueError, match=REFUSED):
        load_checkpoint(path)


def test_appended_bytes_are_refused(path):
    path.write_bytes(WHOLE + b"more")
    with pytest.raises(ValueError, match=REFUSED):
        load_checkpoint(path)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_the_data_is_found(bit, path):
    start = 8 + int.from_bytes(WHOLE[:8], "little")
    for position in range(start, len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[position] ^= 1 << bit
        path.write_bytes(bytes(changed))
        with pytest.raises(ValueError, match=REFUSED):
            load_checkpoint(path)
