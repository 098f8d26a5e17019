"""Values of table cells: vectors as bars, and images and recordings as they are stored."""

import pyarrow as pa
import pytest

from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def shown(value: object, type_: pa.DataType) -> Shown:
    return arrow_values.show(pa.scalar(value, type_), pa.field("value", type_))


def test_a_short_vector_has_a_bar_for_each_value():
    assert shown([1.0, -2.0, 0.5], pa.list_(pa.float32(), 3)).bars == (1.0, -2.0, 0.5)


def test_a_long_vector_has_means_of_neighbors():
    values = [float(n // 2) for n in range(96)]
    assert shown(values, pa.list_(pa.float32(), 96)).bars == tuple(map(float, range(48)))


def test_values_that_are_not_finite_have_no_bar():
    vector = shown([None, float("nan"), float("inf"), 3.0], pa.list_(pa.float64(), 4))
    assert vector.bars == (0.0, 0.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff" + bytes(40), "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBP" + bytes(40), "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVE" + bytes(40), "audio/wav"),
        (b"OggS" + bytes(40), "audio/ogg"),
        (b"II*\x00" + bytes(40), ""),
        (b"<svg onload='alert(1)'>", ""),
        (b"RIFF\x00\x00\x00\x00AVI " + bytes(40), ""),
    ],
)
def test_only_formats_that_browsers_draw_or_play_are_media(data, media_type):
    cell = shown(data, pa.binary())
    assert cell.media_type == media_type
    assert cell.media == (data if media_type else b"")


def test_a_large_image_is_named_but_not_drawn():
    cell = shown(PNG + bytes(256 * 1024), pa.large_binary())
    assert (cell.note, cell.media_type, cell.media) == ("PNG image", "", b"")
