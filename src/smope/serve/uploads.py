"""Pictures out of a multipart form, as it comes in: into memory to be answered, into the model's folder to be learned, nowhere else.

The usual parsers lay large parts into the system's temporary folder. This one never does, and it refuses the first byte too many.
"""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from smope.serve.limits import KILO, Limits, Refusal, megabytes

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form is told to its sender, not to the log

_TEXT_BYTES = 4 * KILO
_NAME_LETTERS = 120
_HOW = "Send a form (multipart/form-data) with the pictures as files named 'picture'."

Sink = Callable[[int], BinaryIO]  #: where the n-th picture goes


@dataclass
class Picture:
    """One file of a form."""

    name: str  #: as the sender calls it; for messages only, never a path
    into: BinaryIO
    size: int = 0


@dataclass
class Form:
    """What was sent: pictures, and class names beside them."""

    pictures: list[Picture] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


class _Reader:
    """The parser's callbacks."""

    def __init__(self, boundary: bytes, most: int, limits: Limits, sink: Sink) -> None:
        self.form = Form()
        self.whole = False
        self._most, self._limits, self._sink = most, limits, sink
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._text: bytearray | None = None
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._open,
                "on_part_data": self._take,
                "on_part_end": self._close,
                "on_end": self._finish,
            },
        )

    def _begin(self) -> None:
        self._disposition, self._text = b"", None

    def _end_header(self) -> None:
        if bytes(self._header[0]).lower() == b"content-disposition":
            self._disposition = bytes(self._header[1])
        self._header = (bytearray(), bytearray())

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        if b"filename" in options and name == "picture":
            if len(self.form.pictures) == self._most:
                raise Refusal(413, f"There are more than {self._most:,} pictures in one request.", "Send them in several.")
            shown = _text(options[b"filename"])[-_NAME_LETTERS:]
            self.form.pictures.append(Picture(shown or "picture", self._sink(len(self.form.pictures))))
        elif b"filename" not in options and name == "class":
            if len(self.form.classes) == self._most:
                raise Refusal(413, f"There are more than {self._most:,} class names in one request.", "Send them in several.")
            self._text = bytearray()
        else:
            raise Refusal(422, f"The form has a part {name[:60]!r} that is not asked for.", _HOW)

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._text is not None:
            self._text.extend(data[start:end])
            if len(self._text) > _TEXT_BYTES:
                raise Refusal(413, "A class name is too long.", "A class name is one line of 1 to 200 characters.")
            return
        picture = self.form.pictures[-1]
        picture.size += end - start
        if picture.size > self._limits.picture_bytes:
            limit = megabytes(self._limits.picture_bytes)
            raise Refusal(413, f"'{picture.name}' is larger than {limit}.", "Reduce the picture, or leave it out.")
        picture.into.write(data[start:end])

    def _close(self) -> None:
        if self._text is not None:
            self.form.classes.append(_text(bytes(self._text)))
        elif not isinstance(picture := self.form.pictures[-1].into, io.BytesIO):
            picture.close()

    def _finish(self) -> None:
        self.whole = True


async def read_form(
    content_type: str, body: AsyncIterator[bytes], most: int, limits: Limits, sink: Sink, charge: Callable[[int], None] = lambda size: None
) -> Form:
    """The form in a body, with at least one picture and at most `most`. `charge` is told of bytes as they arrive."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise Refusal(415, "The request is no form with files.", _HOW)
    try:
        reader = _Reader(boundary, most, limits, sink)
    except FormParserError as error:
        raise Refusal(400, f"The form cannot be read: {error}.", _HOW) from None
    try:
        async for chunk in body:
            charge(len(chunk))
            reader.parser.write(chunk)
        if not reader.whole:
            raise Refusal(400, "The upload ends too early.", "Send it again.")
        if not reader.form.pictures:
            raise Refusal(422, "There is no picture in the form.", _HOW)
    except BaseException as error:
        for picture in reader.form.pictures:
            picture.into.close()
        if isinstance(error, FormParserError):
            raise Refusal(400, f"The form cannot be read: {error}.", _HOW) from None
        raise
    finally:
        del reader.parser  # it knows its reader: together they would keep the pictures until a garbage collection
    return reader.form


def in_memory(_: int) -> BinaryIO:
    """The sink of pictures that are looked at and forgotten."""
    return io.BytesIO()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
