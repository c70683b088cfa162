"""Packages: those Rookery needs, those an extra brings, and whether what they hold really works."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement

from rookery.doctor.finding import Finding, Wanted, note, ok, problem, warning
from rookery.doctor.probe import try_out

FOR_DEVELOPERS = ("dev", "docs", "test", "lint", "bench")
SHOWN = ("torch", "numpy", "gymnasium")
"""Packages whose versions decide what a run computes."""
FFMPEG_SECS = 10.0

ENVIRONMENTS = """
import json, os
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
import gymnasium as gym
def attempt(name, make):
    try:
        env = make(); env.reset(seed=0); env.close()
        print(json.dumps({name: ""}), flush=True)
    except BaseException as error:
        print(json.dumps({name: f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
def atari():
    import ale_py
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5")
attempt("Box2D", lambda: gym.make("LunarLander-v3"))
attempt("Atari", atari)
"""


@dataclass(slots=True)
class Extra:
    """An extra of the package: what it needs, as far as it is there."""

    name: str
    there: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)


def version_of(package: str) -> str | None:
    """The installed version, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_extras(package: str = "rookery") -> list[Extra]:
    """Every extra that ``package`` declares, in its order."""
    metadata = importlib.metadata.metadata(package)
    requires = importlib.metadata.requires(package) or []
    return [_extra(name, requires) for name in metadata.get_all("Provides-Extra") or []]


def _extra(name: str, requires: Iterable[str]) -> Extra:
    extra = Extra(name)
    for requirement in map(Requirement, requires):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": name}):
            continue
        _sort_in(extra, requirement)
    return extra


def _sort_in(extra: Extra, requirement: Requirement) -> None:
    version = version_of(requirement.name)
    if version is None or not requirement.specifier.contains(version, prereleases=True):
        extra.lacking.append(f"{requirement.name}{requirement.specifier}")
    else:
        extra.there[requirement.name] = version


def python(wanted: Wanted) -> Iterator[Finding]:
    """Python and the packages that are always needed."""
    yield ok("python", platform.python_version())
    needed = Extra("")
    for requirement in map(Requirement, importlib.metadata.requires("rookery") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _sort_in(needed, requirement)
    for name in SHOWN:
        if name in needed.there:
            yield ok(name, needed.there[name], version=needed.there[name])
    if needed.lacking:
        text = f"{', '.join(needed.lacking)} not installed"
        yield problem("packages", text, "`pip install --upgrade rookery`", lacking=needed.lacking)
    else:
        yield ok("packages", f"all {len(needed.there)} that Rookery needs")


def extras(wanted: Wanted, found: list[Extra] | None = None) -> Iterator[Finding]:
    """What each extra brings; those for developers at the end."""
    there = read_extras() if found is None else found
    for extra in sorted(there, key=lambda extra: extra.name in FOR_DEVELOPERS):
        name = f"[{extra.name}]"
        what = f'`pip install "rookery[{extra.name}]"`'
        developers = " (for developers)" if extra.name in FOR_DEVELOPERS else ""
        if extra.lacking:
            text = f"without {', '.join(extra.lacking)}{developers}"
            yield note(name, text, what, lacking=extra.lacking, versions=extra.there)
        else:
            versions = ", ".join(f"{package} {version}" for package, version in extra.there.items())
            yield ok(name, f"{versions}{developers}", versions=extra.there)


def environments(wanted: Wanted, code: str = ENVIRONMENTS) -> Iterator[Finding]:
    """Make one environment of each kind that comes with binaries."""
    tried = try_out(code)
    brings = {"Box2D": "`pip install swig` and `pip install --force-reinstall box2d`"}
    for name in ("Box2D", "Atari"):
        said = tried.said.get(name, tried.fate or "no answer")
        remedy = brings.get(name, "`pip install --force-reinstall ale-py`")
        if said:
            yield warning(name, f"cannot be made: {said}", remedy)
        else:
            about = "LunarLander" if name == "Box2D" else "ALE and its ROMs"
            yield ok(name, f"{about} can be made")


def display(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether a window can be opened."""
    for name in ("WAYLAND_DISPLAY", "DISPLAY"):
        if environ.get(name):
            yield ok("display", f"{name}={environ[name]}")
            return
    yield note("display", "none: no windows here; videos can be recorded without", "")


def ffmpeg(wanted: Wanted, command: str | None = None) -> Iterator[Finding]:
    """Run the ffmpeg that writes videos."""
    remedy = "`pip install --force-reinstall imageio-ffmpeg`, or set IMAGEIO_FFMPEG_EXE"
    try:
        if command is None:
            command = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        done = subprocess.run(
            [command, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FFMPEG_SECS,
            check=True,
        )
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        yield warning("ffmpeg", f"does not run: {error}; no videos", remedy)
        return
    version = re.search(r"version (\S+)", done.stdout)
    yield ok("ffmpeg", f"{version[1] if version else 'runs'}")
