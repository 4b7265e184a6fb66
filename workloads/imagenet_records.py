"""Pack images as MXNet's RecordIO and TensorFlow's TFRecords for stage_imagenet.py.

stage_imagenet.py calls :func:`facts_of` for each image, which reads its properties without decoding it, and
:func:`encode_again` for some images. It packs an image with :func:`mxnet_image` and :func:`recordio_record`,
or with :func:`image_example` and :func:`tfrecord`. The module needs only the standard library (Python 3.8+).
TFRecords also need google-crc32c, and :func:`encode_again` needs Pillow.
"""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)
_CRC_MASK = 0xA282EAD8
_NO_FRAMES = {0xC4, 0xC8, 0xCC}
"""Markers between SOF0 and SOF15 that begin something other than a frame, such as tables of codes."""


class BadImage(ValueError):  # noqa: N818  (reads as what it is)
    """An image that is neither a JPEG nor a PNG, or that is damaged."""


class ImageFacts(NamedTuple):
    """The properties of an image, from its header.

    ``kind`` is jpeg or png, and the number of components is 1 (grey), 3 or 4 (CMYK).
    """

    kind: str
    width: int
    height: int
    components: int

    @property
    def oddity(self) -> str:
        """Return "PNG" or "CMYK" for an image that is not a grey or RGB JPEG, or else ""."""
        if self.kind != "jpeg":
            return self.kind.upper()
        return "CMYK" if self.components == 4 else ""


def facts_of(data: bytes) -> ImageFacts:
    """Return the properties of an image from its header.

    Raises:
        BadImage: The image is neither a JPEG nor a PNG, or its header is damaged or has no size.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 26:
        width, height, _depth, colour = struct.unpack_from(">IIBB", data, 16)
        return ImageFacts("png", width, height, {0: 1, 4: 1}.get(colour, 3))
    if data[:2] != b"\xff\xd8":
        raise BadImage("it is neither a JPEG nor a PNG")
    at, end = 2, len(data) - 9
    while at < end:
        if data[at] != 0xFF:
            raise BadImage("its JPEG header is damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            height, width, components = struct.unpack_from(">HHB", data, at + 5)
            return ImageFacts("jpeg", width, height, components)
        # The markers TEM, RST0 to RST7 and SOI state no length.
        alone = marker == 0x01 or 0xD0 <= marker <= 0xD8
        at += 2 if alone else 2 + ((data[at + 2] << 8) | data[at + 3])
    raise BadImage("its JPEG header has no size")


def encode_again(data: bytes, shorter_edge: int, quality: int) -> tuple[bytes, int, int]:
    """Return an image as an RGB JPEG, with its width and height. A ``shorter_edge`` of 0 keeps the size.

    Raises:
        BadImage: The image cannot be decoded.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadImage(f"it cannot be decoded ({error})") from error
    if shorter_edge:
        width, height = image.size
        # As in im2rec.py, the other edge is rounded down.
        if height > width:
            size = (shorter_edge, height * shorter_edge // width)
        else:
            size = (width * shorter_edge // height, shorter_edge)
        if size != image.size:
            image = image.resize(size, Image.Resampling.BILINEAR)
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=quality)
    return packed.getvalue(), image.size[0], image.size[1]


# RecordIO


def recordio_record(data: bytes) -> bytes:
    """Return a record as dmlc's RecordIO frames it.

    A reader finds records by their magic number. Where the data contain this number at an offset that is a
    multiple of four, it is removed, and a new piece of the record begins.
    """
    cuts = []
    at = data.find(RECORDIO_MAGIC)
    while at >= 0:
        aligned = at % 4 == 0
        if aligned:
            cuts.append(at)
        at = data.find(RECORDIO_MAGIC, at + (4 if aligned else 1))
    pieces = []
    begin = 0
    for number, end in enumerate([*cuts, len(data)]):
        size = end - begin
        # 0 is a whole record. 1, 2 and 3 are its first, a middle, and its last piece.
        flag = 0 if not cuts else 1 if number == 0 else 3 if number == len(cuts) else 2
        pieces += [RECORDIO_MAGIC, struct.pack("<I", flag << 29 | size), data[begin:end], b"\0" * (-size % 4)]
        begin = end + 4
    return b"".join(pieces)


def mxnet_image(label: int, number: int, image: bytes) -> bytes:
    """Return an image with the header for MXNet's image readers, which is flag, label, id, and second id."""
    return struct.pack("<IfQQ", 0, label, number, 0) + image


# TFRecords


def varint(value: int) -> bytes:
    """Return a number as protocol buffers write it."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer whose content is bytes or an encoded message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(value: Any) -> bytes:
    """Return an encoded ``tf.train.Feature`` with a value.

    The value is one integer, one text, or bytes. For None, the feature has an empty list of floats.
    """
    if value is None:
        return field(2, b"")
    if isinstance(value, int):
        return field(3, field(1, varint(value)))
    return field(1, field(1, value.encode() if isinstance(value, str) else value))


def example(features: dict[str, Any]) -> bytes:
    """Return a ``tf.train.Example`` with its features in the order of their names."""
    entries = b"".join(
        field(1, field(1, name.encode()) + field(2, feature(features[name]))) for name in sorted(features)
    )
    return field(1, entries)


def image_example(
    name: str, wnid: str, words: str, label: int, width: int, height: int, image: bytes
) -> bytes:
    """Return the example of an image with the features of TensorFlow's build_imagenet_data.py.

    The feature image/object/bbox/label is missing, and the lists of boxes are empty.

    Args:
        name: The name of the file.
        wnid: The name of the class.
        words: The class in words.
        label: The label, counted from 1.
        width: The width in pixels.
        height: The height in pixels.
        image: The content of a JPEG.
    """
    boxes = dict.fromkeys(f"image/object/bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax"))
    return example(
        {
            **boxes,
            "image/channels": 3,
            "image/class/label": label,
            "image/class/synset": wnid,
            "image/class/text": words,
            "image/colorspace": "RGB",
            "image/encoded": image,
            "image/filename": name,
            "image/format": "JPEG",
            "image/height": height,
            "image/width": width,
        }
    )


def tfrecord(data: bytes) -> bytes:
    """Return a record with the frame of TFRecord files.

    The frame has the length and the content, each followed by its masked CRC-32C.
    """
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF)
