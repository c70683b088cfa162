"""All benchmarks, one after another, with the versions they ran with: `make bench`."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = ("cartpole.py", "local_speed.py", "snake_speed.py", "live_view.py", "start_up.py")


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium"))
    print(f"Python {platform.python_version()}, {packages}")
    for script in SCRIPTS:
        print(f"\n## {script}\n", flush=True)
        subprocess.run([sys.executable, str(HERE / script)], check=True)


if __name__ == "__main__":
    main()
