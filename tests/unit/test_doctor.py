"""The doctor on this machine, and each check under conditions made for it."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.doctor import narrow_lines, plain_lines, verdict
from rookery.cli.main import main
from rookery.doctor import limits, machine, numerics, parts, recipe, storage
from rookery.doctor.cgroup import Cgroup
from rookery.doctor.finding import Finding, Wanted, note, ok, problem, size, warning
from rookery.doctor.probe import try_out
from rookery.doctor.report import Group, Report, answer, examine
from rookery.programs.memory import estimate
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ANY = Wanted()


def one(findings: Iterable[Finding], name: str | None = None) -> Finding:
    (found,) = [finding for finding in findings if name in (None, finding.name)]
    return found


def wanting(*flags: str, where: Path = Path("runs")) -> Wanted:
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    config = settings_from_flags("cartpole", given)
    plan = Plan.of(config)
    return Wanted(where=where, nodes=plan.program().nodes, config=config, needs=estimate(plan))


def in_child(code: str, before: Callable[[], Any] | None = None) -> dict[str, Any]:
    """What ``code`` prints as JSON in a process of its own."""
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        preexec_fn=before,
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


# ---- the command


@pytest.mark.slow
def test_the_command_reports_on_this_machine(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-m", "rookery", "doctor", "cartpole", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = json.loads(out.stdout)
    assert out.returncode == (0 if report["ok"] else 1), out.stderr
    found = {check["name"]: check for check in report["checks"]}
    names = {"python", "torch", "numpy", "gymnasium", "cores", "load", "memory", "memfd", "bf16"}
    names |= {"/dev/shm", "open files", "processes", "clock", "threads", "OpenMP", "arithmetic"}
    names |= {"devices", "Box2D", "Atari", "display", "ffmpeg", "runs", "file system", "home"}
    assert names <= set(found)
    assert found["python"]["text"] == sys.version.split()[0]
    assert found["cores"]["data"]["usable"] == len(os.sched_getaffinity(0))
    assert found["cartpole"]["level"] == "ok"
    assert [check for check in report["checks"] if "could not be checked" in check["text"]] == []
    assert os.listdir(tmp_path) == []  # it leaves nothing behind


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cartpol"], "unknown recipe 'cartpol'; did you mean 'cartpole'"),
        (["--actors", "3"], "--actors: settings need a recipe"),
        (["cartpole", "snake"], "'snake' is one word too many"),
        (["cartpole", "--actros", "3"], "unknown flag --actros; did you mean '--actors'"),
        (["-j"], "unknown flag -j"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rookery: ")
    assert said in err
    assert err.count("\n") == 1


def test_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "--json" in capsys.readouterr().out


SAMPLE = Report(
    [
        Group("machine", [ok("cores", "8 usable"), warning("[x]", "a " * 40, "do `this`")]),
        Group("storage", [problem("runs", "cannot be written", "choose another --run DIR")]),
    ]
)


def test_a_pipe_gets_one_line_for_each_finding() -> None:
    lines = plain_lines(SAMPLE)
    assert lines[0] == "ok       cores  8 usable"
    assert lines[2] == "problem  runs   cannot be written -> choose another --run DIR"
    assert lines[3] == "One of these would stop a run"
    assert len(lines) == 4


def test_narrow_terminals_are_wide_enough() -> None:
    lines = narrow_lines(SAMPLE, 40)
    assert max(map(len, lines)) <= 40
    assert "warning: [x]" in lines
    assert "  -> do `this`" in lines


@pytest.mark.parametrize("columns", [40, 100])
def test_a_terminal_gets_all_of_it(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("rookery.doctor.report.examine", lambda wanted: SAMPLE)
    assert main(["doctor"]) == 1
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    for text in ("cores", "[x]", "-> do `this`", "cannot be written", "would stop a run"):
        assert text in screen.getvalue()


@pytest.mark.parametrize(
    ("findings", "said", "stops"),
    [
        ([ok("a", "b"), note("a", "b")], "All is well", False),
        ([warning("a", "b", "c")], "Runs will work; 1 warning", False),
        ([warning("a", "b", "c"), problem("a", "b", "c")], "One of these would stop a run", True),
        ([problem("a", "b", "c")] * 2, "2 of these would stop a run", True),
    ],
)
def test_the_verdict(findings: list[Finding], said: str, stops: bool) -> None:
    report = Report([Group("x", findings)])
    assert verdict(report) == said
    assert report.stops == stops


def test_a_check_that_fails_is_reported_and_the_rest_stays() -> None:
    def half_broken(wanted: Wanted) -> Iterable[Finding]:
        yield ok("first", "fine")
        raise OSError("no such device\nreally")

    report = examine(ANY, {"a": [half_broken], "b": [lambda wanted: [ok("second", "fine")]]})
    names = [(finding.level, finding.name) for finding in report.findings]
    assert names == [("ok", "first"), ("warning", "half broken"), ("ok", "second")]
    assert report.findings[1].text == "could not be checked (OSError: no such device)"


# ---- cores, memory, processes: a made-up control group


def tree(root: Path, membership: str, files: dict[str, str]) -> Cgroup:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "membership").write_text(membership)
    return Cgroup(root / "cgroup", root / "membership")


def test_limits_of_version_2_count_all_the_way_up(tmp_path: Path) -> None:
    group = tree(
        tmp_path,
        "0::/box/inner\n",
        {
            "box/cpu.max": "50000 100000\n",
            "box/inner/cpu.max": "max 100000\n",
            "box/memory.max": f"{256 << 20}\n",
            "box/inner/memory.max": "max\n",
            "box/inner/memory.current": f"{200 << 20}\n",
            "box/pids.max": "20\n",
        },
    )
    assert group.cpus() == 0.5
    cached = tmp_path / "cgroup" / "box" / "inner" / "memory.stat"
    cached.write_text(f"anon 7\ninactive_file {100 << 20}\nactive_file {50 << 20}\n")
    assert group.memory_used_bytes() == 50 << 20  # the rest is given back when it is asked for
    cached.unlink()
    assert group.memory_bytes() == 256 << 20
    assert group.memory_used_bytes() == 200 << 20
    assert group.processes() == 20
    assert machine.usable_cores(group, {})[0] == 1
    low = one(machine.memory(ANY, group))
    assert low.level == "warning"
    assert "56 MiB free of 256 MiB (limited by its control group)" in low.text
    assert low.remedy
    few = one(limits.processes(wanting("actors", "9", "engine", "local"), group))
    assert few.level == "warning"
    assert "at most 20 processes" in few.text


def test_limits_of_version_1(tmp_path: Path) -> None:
    group = tree(
        tmp_path,
        "4:memory:/job\n3:cpu,cpuacct:/job\n2:pids:/\n",
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert group.cpus() == 1.5
    assert group.memory_bytes() is None
    assert group.processes() is None


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    group = Cgroup(tmp_path / "none", tmp_path / "nowhere")
    assert (group.cpus(), group.memory_bytes(), group.processes()) == (None, None, None)
    assert machine.usable_cores(group, {})[0] == len(os.sched_getaffinity(0))


def test_slurm_and_affinity_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = Cgroup(tmp_path / "none", tmp_path / "nowhere")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    given = machine.usable_cores(none, {"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"})
    assert given == (4, ["affinity 16 of 64", "SLURM_CPUS_PER_TASK 4"])
    assert machine.usable_cores(none, {"SLURM_CPUS_PER_TASK": "99"})[0] == 16


def test_memory_for_many_processes(tmp_path: Path) -> None:
    none = Cgroup(tmp_path / "none", tmp_path / "nowhere")
    (tmp_path / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    plenty = one(machine.memory(ANY, none, tmp_path / "meminfo"))
    assert (plenty.level, plenty.text) == ("ok", "4.0 GiB free of 8.0 GiB")
    many = wanting("engine", "local", "actors", "30")
    low = one(machine.memory(many, none, tmp_path / "meminfo"))
    assert low.level == "warning"
    assert "the run takes about 5.46 GB (processes " in low.text


# ---- limits


FILES = """
import json
from rookery.doctor.finding import Wanted
from rookery.doctor.limits import open_files
from rookery.programs.graph import Node
(found,) = open_files(Wanted(nodes=(Node(name="actor", build=None, replicas=40),)))
print(json.dumps([found.level, found.text, found.remedy]))
"""


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [((200, 4096), "`ulimit -n 1024` before the run"), ((200, 200), "have the hard limit raised")],
)
def test_too_few_open_files_would_stop_a_run(limit: tuple[int, int], remedy: str) -> None:
    level, text, said = in_child(FILES, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit))
    assert level == "problem"
    assert text == f"200 at once (up to {limit[1]}); 40 actors need 224"
    assert said.startswith(remedy)


def test_enough_open_files_are_fine() -> None:
    level, _, _ = in_child(FILES, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)))
    assert level == "ok"


# ---- numerics


FP32 = 'print(\'{"threads": 1, "cuda": [], "mps": false, "fp32": 4096.0}\', flush=True);'
DIE = "import os, signal; os.kill(os.getpid(), signal.%s)"


def test_an_illegal_instruction_ends_only_the_probe() -> None:
    found = list(numerics.arithmetic(ANY, FP32 + DIE % "SIGILL"))
    bf16 = one(found, "bf16")
    assert (bf16.level, bf16.text) == ("note", "no: illegal instruction; fp32 is used")
    assert one(found, "arithmetic").level == "ok"
    assert one(found, "devices").level == "ok"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (DIE % "SIGSEGV", "torch does not compute: ended by SIGSEGV"),
        ("raise ImportError('no torch')", "torch does not compute: ImportError: no torch"),
        ("", "torch does not compute: no answer"),
    ],
)
def test_without_arithmetic_nothing_runs(code: str, said: str) -> None:
    found = one(numerics.arithmetic(ANY, code))
    assert (found.level, found.text) == ("problem", said)


def test_a_graphics_processor_is_named() -> None:
    code = FP32.replace("[]", '["H100"]')
    assert one(numerics.arithmetic(ANY, code), "devices").text == "--device cuda: H100"
    code = FP32.replace("false", "true")
    assert one(numerics.arithmetic(ANY, code), "devices").text == "--device mps"


def test_a_probe_that_hangs_is_given_up() -> None:
    tried = try_out("import signal; signal.pause()", timeout_secs=0.3)
    assert tried.fate.startswith("no answer")


def test_bf16_that_was_asked_for_and_is_not_there_is_a_problem() -> None:
    asked = wanting("policy.precision", "bf16")
    found = one(numerics.arithmetic(asked, FP32 + DIE % "SIGILL"), "bf16")
    assert (found.level, found.remedy) == ("problem", "--policy.precision auto")


# ---- parts


def test_extras_come_from_the_package_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package with extras of which one is there, one not, one too old, and one is for us."""
    info = tmp_path / "aviary-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: aviary\nVersion: 1.0\n"
        "Provides-Extra: dev\nProvides-Extra: nest\nProvides-Extra: song\nProvides-Extra: old\n"
        'Requires-Dist: numpy\nRequires-Dist: pytest; extra == "dev"\n'
        'Requires-Dist: no-such-bird>=2; extra == "nest"\n'
        'Requires-Dist: numpy>=1; extra == "song"\n'
        'Requires-Dist: numpy>=999; extra == "old"\n'
        "Requires-Dist: numpy>=999; extra == 'old' and python_version < '3'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(parts.extras(ANY, parts.read_extras("aviary")))
    assert [finding.name for finding in found] == ["[nest]", "[song]", "[old]", "[dev]"]
    nest, song, old, dev = found
    assert (nest.level, nest.text) == ("note", "without no-such-bird>=2")
    assert nest.remedy == '`pip install "rookery[nest]"`'
    assert song.level == "ok"
    assert song.text.startswith("numpy ")
    assert old.text == "without numpy>=999"
    assert dev.text.endswith("(for developers)")


def test_a_missing_package_would_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(parts.python(ANY), "packages").level == "ok"
    there = parts.version_of
    monkeypatch.setattr(parts, "version_of", lambda name: None if name == "lz4" else there(name))
    found = one(parts.python(ANY), "packages")
    assert found.level == "problem"
    assert found.text.startswith("lz4")
    assert "pip install" in found.remedy


def test_environments_that_cannot_be_made() -> None:
    code = 'print(\'{"Box2D": "ImportError: no swig"}\', flush=True);' + DIE % "SIGABRT"
    box2d, atari = parts.environments(ANY, code)
    assert (box2d.level, box2d.text) == ("warning", "cannot be made: ImportError: no swig")
    assert atari.text == "cannot be made: ended by SIGABRT"
    assert "ale-py" in atari.remedy


def test_displays() -> None:
    assert one(parts.display(ANY, {"DISPLAY": ":0"})).text == "DISPLAY=:0"
    wayland = {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}
    assert one(parts.display(ANY, wayland)).text == "WAYLAND_DISPLAY=wayland-0"
    assert one(parts.display(ANY, {})).level == "note"


def test_ffmpeg_really_runs() -> None:
    assert one(parts.ffmpeg(ANY)).level == "ok"
    for command in ("/bin/false", "/no/such/ffmpeg"):
        found = one(parts.ffmpeg(ANY, command))
        assert found.level == "warning"
        assert "imageio-ffmpeg" in found.remedy


# ---- storage


def test_a_place_that_can_be_written(tmp_path: Path) -> None:
    found = list(storage.runs(Wanted(where=tmp_path / "new" / "runs")))
    assert [finding.level for finding in found] == ["ok", "ok"]
    assert f"free in {tmp_path}" in found[0].text
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_would_stop_a_run(tmp_path: Path) -> None:
    found = one(storage.runs(Wanted(where=Path("/proc/sys/runs"))))
    assert found.level == "problem"
    assert found.text.startswith("/proc/sys cannot be written: ")
    assert "--run DIR" in found.remedy
    (tmp_path / "runs").write_text("a file")
    found = one(storage.runs(Wanted(where=tmp_path / "runs" / "first")))
    assert (found.level, found.text) == (
        "problem",
        f"{tmp_path / 'runs' / 'first'} is below a file",
    )


@pytest.mark.parametrize(("free", "level"), [(1 << 40, "ok"), (1 << 29, "warning"), (1, "problem")])
def test_room_on_the_disk(
    tmp_path: Path, free: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        def __init__(self, free: int) -> None:
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage(free))
    assert one(storage.runs(Wanted(where=tmp_path)), "runs").level == level


def test_network_file_systems_are_noted(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"30 21 0:40 / {tmp_path} rw shared:1 - nfs4 server:/home rw\n"
        "31 21 0:41 / /elsewhere rw - tmpfs tmpfs rw\n"
    )
    assert storage.file_system(tmp_path / "runs", mounts) == "nfs4"
    assert storage.file_system(Path("/usr"), mounts) == "ext4"
    assert storage.is_network("nfs4")
    assert not storage.is_network("ext4")
    assert storage.file_system(tmp_path, tmp_path / "gone") == "unknown"


def test_home_and_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(storage.home(ANY, tmp_path)).level == "ok"
    bad = one(storage.home(ANY, Path("/proc/sys")))
    assert bad.level == "warning"
    assert "set HOME" in bad.remedy
    assert one(storage.temporary(ANY)).level == "ok"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert one(storage.temporary(ANY)).level == "problem"


# ---- the rest of the machine


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(machine.shared_memory(ANY), "memfd").level == "ok"
    assert (
        one(machine.shared_memory(ANY, tmp_path / "gone"), str(tmp_path / "gone")).level == "note"
    )

    class Small:
        f_frsize, f_blocks, f_bavail = 4096, 16384, 16384  # 64 MiB

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    small = one(machine.shared_memory(ANY), "/dev/shm")
    assert small.level == "warning"
    assert "--shm-size" in small.remedy

    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert one(machine.shared_memory(ANY), "memfd").level == "warning"
    local = wanting("engine", "local")
    assert one(machine.shared_memory(local), "memfd").level == "problem"


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.plausible(1_800_000_000.0, 1_700_000_000.0)
    assert not machine.plausible(0.0, 1_700_000_000.0)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    found = one(machine.clock(ANY, 0.0))
    assert found.level == "warning"
    assert "before Rookery was installed" in found.text


def test_a_recipe_that_would_not_start_is_told(tmp_path: Path) -> None:
    assert list(recipe.starts(ANY)) == []
    assert one(recipe.starts(wanting())).level == "ok"
    found = one(recipe.starts(wanting("device", "cuda:99")))
    assert found.level == "problem"
    assert found.remedy == "use --device cpu"


def test_sizes_read_well() -> None:
    assert [size(number) for number in (3, 2048, 5 << 20, 3 << 30)] == [
        "3 B",
        "2 KiB",
        "5 MiB",
        "3.0 GiB",
    ]


def test_signals_are_named() -> None:
    assert try_out(DIE % "SIGILL").code == -signal.SIGILL
    assert answer(machine.system, ANY)[0].name == "system"
