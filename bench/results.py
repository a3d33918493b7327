"""What every result file of bench/results/ carries, and how tables are printed. Shared by bench/run_*.py."""
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = pathlib.Path(os.environ.get("BGTQ_MODELS", pathlib.Path.home() / ".cache/blockgtq/models"))
MODEL_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b.gguf",
}


def model_path(name):
    path = MODELS / MODEL_FILES[name]
    if not path.is_file():
        sys.exit(f"{path} is missing; run scripts/fetch_models.sh {name}")
    return path


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {k.strip(): v.strip() for k, v in fields.items()}
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "features": [f for f in wanted if f in fields.get("flags", "").split()],
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average_before": os.getloadavg()[0],
    }


def gpu():
    """The GPU's name, or None."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                                text=True)
    except OSError:
        return None
    return listed.stdout.splitlines()[0].strip() if listed.returncode == 0 and listed.stdout.strip() else None


def commit():
    """The commit, with "+" when sources differ from it. BGTQ_COMMIT: of a tree that came without its history."""
    if os.environ.get("BGTQ_COMMIT"):
        return os.environ["BGTQ_COMMIT"]

    def git(*arguments):
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "src", "include", "apps", "cmake", "bench/*.py")
    return git("rev-parse", "HEAD") + ("+" if dirty else "")


def header():
    # Folders of one machine say nothing elsewhere.
    arguments = [os.path.basename(a) if os.path.isabs(a) else a for a in sys.argv[1:]]
    return {"machine": machine(), "commit": commit(), "command": shlex.join([os.path.relpath(sys.argv[0], ROOT), *arguments])}


def run_json(command, json_path):
    """Runs a command that writes json_path; returns what it wrote. Its output goes to stderr."""
    command = [str(c) for c in command]
    print("$ " + shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=sys.stderr.fileno())
    if done.returncode != 0:
        sys.exit(f"exit status {done.returncode}: {shlex.join(command)}")
    return json.loads(pathlib.Path(json_path).read_text())


def load(name):
    """A file of bench/results/, or None."""
    path = ROOT / "bench/results" / name
    return json.loads(path.read_text()) if path.exists() else None


def number(value):
    """Three digits, without the zero before the point."""
    return f"{value:.3g}".removeprefix("0")


def write(path, result):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])
