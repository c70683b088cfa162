"""Pictures into a video file: H.264 by ffmpeg, or a GIF.

::

    with open_video(path, fps=30) as video:
        for picture in pictures:            # uint8[height, width, 3], all of one size
            video.add(picture)

The file appears under its name when it is whole; after an error there is none.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from rookery.core.errors import UserError, near_names
from rookery.core.spec import Array
from rookery.envs.faults import one_line
from rookery.runs.atomic import temp_name

SUFFIXES = (".mp4", ".gif")
GIF_MOST_FPS = 50.0
"""Viewers play shorter frames than 20 ms far too slowly."""
_PALETTE_FRAMES, _EXACT = 32, 160
_CODE = np.array([65536, 256, 1], np.uint32)
"""Makes one number of a colour."""


class Video(Protocol):
    """Takes the pictures of a video in their order."""

    def add(self, picture: Array) -> None:
        """Append a picture ``[height, width, 3]``."""
        ...

    def finish(self) -> None:
        """Write what is left; the file is whole afterwards."""
        ...

    def abandon(self) -> None:
        """Stop at once."""
        ...


def check_path(path: Path, *, force: bool) -> None:
    """Refuse a name that cannot be written, before an episode is played."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = near_names(suffix, SUFFIXES)
        known = " or ".join(SUFFIXES)
        raise UserError(f"--out {path}: the name must end in {known}{hint}")
    for file in (path, path.with_suffix(".json")):
        if file.is_dir():
            raise UserError(f"--out {path}: {file} is a directory; choose another name")
        if file.exists() and not force:
            raise UserError(f"--out {path}: {file} is there already; --force overwrites it")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: the directory {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--out {path}: {path.parent} is not writable; choose another place")
    if suffix == ".mp4":
        find_ffmpeg()


@contextlib.contextmanager
def open_video(path: Path, *, fps: float) -> Iterator[Video]:
    """A video that is put under ``path`` when the block ends well."""
    temp = temp_name(path)
    video: Video = Mp4(temp, fps) if path.suffix.lower() == ".mp4" else Gif(temp, fps)
    try:
        try:
            yield video
            video.finish()
            os.replace(temp, path)
        except OSError as error:
            raise UserError(f"cannot write {path} ({one_line(error)}); check the disk") from error
    except BaseException:
        video.abandon()
        temp.unlink(missing_ok=True)
        raise


def find_ffmpeg() -> str:
    """The ffmpeg to use, which was seen to run."""
    remedy = "write a .gif instead, or install ffmpeg with `pip install imageio-ffmpeg`"
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]

        program = str(imageio_ffmpeg.get_ffmpeg_exe())
        subprocess.run([program, "-version"], capture_output=True, check=True, timeout=30)
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise UserError(f"no ffmpeg that runs ({one_line(error)}); {remedy}") from error
    return program


class Mp4:
    """H.264 in an MP4 that every player and browser shows."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._fps = fps
        self._program = find_ffmpeg()
        self._process: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed at the end

    def add(self, picture: Array) -> None:
        """Hand a picture to ffmpeg, made even: the format stores colours for two by two pixels."""
        self._shape = _same_shape(self._shape, picture)
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._process is None:
            self._process = self._start(even.shape[1], even.shape[0])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(even).data)
        except BrokenPipeError:
            raise self._failed() from None

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        codec = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p"]
        return subprocess.Popen(
            [
                *(self._program, "-y", "-loglevel", "error", *given, "-r", f"{self._fps:g}"),
                *("-i", "-", "-an", *codec, "-movflags", "+faststart", "-f", "mp4"),
                f"file:{self._path}",  # a colon in a name is no protocol
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            start_new_session=True,  # Ctrl-C is for us; we end it
        )

    def _failed(self) -> OSError:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return OSError(f"ffmpeg: {lines[-1] if lines else 'ended early'}")

    def finish(self) -> None:
        """Wait for ffmpeg to write the end."""
        if self._process is None:
            raise OSError("there was no picture")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait() != 0:
            raise self._failed()
        self._complaints.close()

    def abandon(self) -> None:
        """End ffmpeg."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._complaints.close()


class Gif:
    """A GIF with one palette for all its pictures, so that only what changes is stored."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._fps = min(fps, GIF_MOST_FPS)
        self._frames: list[bytes] = []
        self._shape: tuple[int, ...] = ()

    def add(self, picture: Array) -> None:
        """Keep a picture, compressed, until the palette is known."""
        self._shape = _same_shape(self._shape, picture)
        self._frames.append(zlib.compress(np.ascontiguousarray(picture).data, 1))

    def _codes(self, frame: bytes) -> Array:
        """A kept picture ``[height, width]``, each pixel as one number."""
        picture = np.frombuffer(zlib.decompress(frame), np.uint8).reshape(self._shape)
        return picture.astype(np.uint32) @ _CODE

    def _palette(self) -> Array:
        """255 colours for pictures from all over the video; one is left for what does not change.

        The most frequent colours are kept as they are, so that flat things keep theirs; the rest
        share what is left.
        """
        from PIL import Image

        places = np.unique(np.linspace(0, len(self._frames) - 1, _PALETTE_FRAMES).astype(int))
        pixels = np.concatenate([self._codes(self._frames[place]).ravel() for place in places])
        codes, counts = np.unique(pixels, return_counts=True)
        colours = _colours(codes[np.argsort(-counts, kind="stable")])
        exact, rest = colours[:_EXACT], colours[_EXACT:]
        if not len(rest):
            return exact
        shared = Image.fromarray(rest[None]).quantize(255 - _EXACT).getpalette() or []
        return np.concatenate([exact, np.array(shared, np.uint8).reshape(-1, 3)[: 255 - _EXACT]])

    def finish(self) -> None:
        """Choose the palette and write the file."""
        from PIL import Image

        if not self._frames:
            raise OSError("there was no picture")
        palette = self._palette()
        nearest = _Nearest(palette)

        def reduced(frame: bytes) -> Any:
            image = Image.fromarray(nearest.places(self._codes(frame)))
            image.putpalette(palette.tobytes())  # turns grey values into places of the palette
            return image

        first, *rest = self._frames
        reduced(first).save(
            self._path,
            format="GIF",
            save_all=True,
            append_images=map(reduced, rest),
            duration=durations_ms(len(self._frames), self._fps),
            loop=0,
            optimize=True,
        )

    def abandon(self) -> None:
        """Forget the pictures."""
        self._frames.clear()


def _colours(codes: Array) -> Array:
    """Colours ``[n, 3]`` of their numbers."""
    colours: Array = (codes[:, None] // _CODE % 256).astype(np.uint8)
    return colours


class _Nearest:
    """The nearest colour of a palette, looked up once for each colour there is."""

    def __init__(self, palette: Array) -> None:
        self._palette = palette.astype(np.int32)
        self._known = np.full(1 << 24, -1, np.int16)

    def places(self, codes: Array) -> Array:
        """Places in the palette, in the shape of ``codes``."""
        found = self._known[codes]
        new = np.unique(codes[found < 0])
        if len(new):
            for part in np.array_split(new, -(-len(new) // 4096)):
                away = _colours(part).astype(np.int32)[:, None] - self._palette
                self._known[part] = (away**2).sum(2).argmin(1)
            found = self._known[codes]
        return found.astype(np.uint8)


def _same_shape(before: tuple[int, ...], picture: Array) -> tuple[int, ...]:
    if before not in ((), picture.shape):
        raise UserError(
            f"the environment's picture changed its size from {before[1]}x{before[0]} to "
            f"{picture.shape[1]}x{picture.shape[0]}, which a video cannot; `rookery watch` can"
        )
    return picture.shape


def durations_ms(num: int, fps: float) -> list[int]:
    """How long each picture stays: a GIF counts in 10 ms, and the rounding must not add up."""
    ends = np.rint(np.arange(num + 1) * 100.0 / fps).astype(int)
    return [max(int(stay), 2) * 10 for stay in np.diff(ends)]
