"""What torch computes with: threads, bfloat16, graphics processors."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.doctor.finding import Finding, Wanted, note, ok, problem
from rookery.doctor.probe import Tried, try_out

PROBE = """
import json, torch
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "cuda": cuda,
                  "mps": torch.backends.mps.is_available()}), flush=True)
a = torch.ones(64, 64)
print(json.dumps({"fp32": float((a @ a)[0, 0])}), flush=True)
b = a.to(torch.bfloat16)
print(json.dumps({"bf16": float((b @ b).float()[0, 0])}), flush=True)
"""
"""A product of bfloat16 matrices ends the process on some virtual machines (SIGILL)."""


def arithmetic(wanted: Wanted, code: str = PROBE) -> Iterator[Finding]:
    """Try torch in another process."""
    tried = try_out(code)
    said = tried.said
    if "fp32" not in said:
        remedy = "install torch anew (https://pytorch.org/get-started)"
        yield problem("arithmetic", f"torch does not compute: {tried.fate or 'no answer'}", remedy)
        return
    yield ok(
        "arithmetic",
        f"torch computes, with {said['threads']} threads by itself",
        threads=said["threads"],
    )
    yield _bf16(tried, wanted)
    yield _accelerators(said["cuda"], said["mps"])


def _bf16(tried: Tried, wanted: Wanted) -> Finding:
    if tried.said.get("bf16") == 64.0:
        return ok("bf16", "yes", works=True)
    why, config = tried.fate or "wrong result", wanted.config
    if config is not None and config.policy.precision == "bf16" and config.device == "cpu":
        return problem("bf16", f"no: {why}", "--policy.precision auto", works=False)
    return note("bf16", f"no: {why}; fp32 is used", works=False)


def _accelerators(cuda: list[str], mps: bool) -> Finding:
    if cuda:
        return ok("devices", f"--device cuda: {', '.join(cuda)}", cuda=cuda, mps=mps)
    if mps:
        return ok("devices", "--device mps", cuda=cuda, mps=mps)
    return ok("devices", "--device cpu (no CUDA, no MPS)", cuda=cuda, mps=mps)
