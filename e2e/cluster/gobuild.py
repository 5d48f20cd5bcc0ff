"""Go programs, built from the pinned modules under `modules/` with the machine's Go."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import pins
from e2e.cluster.content import Cache, digest_of, digest_of_files
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.pins import GoModule
from e2e.cluster.progress import Progress, output, run

ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def go_version() -> str:
    """What `go version` says; an error that names the cure when there is no Go."""
    try:
        return output(["go", "version"], cwd=pins.MODULES / "pause").strip()
    except CommandError as error:
        raise ClusterError(f"Go is needed to build the cluster's programs (https://go.dev/dl/): {error}") from error


def flags(module: GoModule) -> list[str]:
    """Arguments of `go build` for a module."""
    variables = " ".join(f"-X {name}={value}" for name, value in module.variables)
    result = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {variables}".strip()]
    if module.tags:
        result += ["-tags", ",".join(module.tags)]
    return result


def module_key(module: GoModule, *, version: str, modules: Path = pins.MODULES) -> str:
    """The cache key of a module's programs."""
    folder = modules / module.name
    sources = [path for path in folder.iterdir() if path.suffix in {".mod", ".sum", ".go"}]
    return digest_of(version, flags(module), module.packages, digest_of_files(folder, sources))


def build(cache: Cache, module: GoModule, *, version: str, progress: Progress, logs: Path) -> Path:
    """The directory with a module's programs."""
    key = module_key(module, version=version)

    def compile_into(target: Path) -> None:
        command = ["go", "build", *flags(module), "-o", f"{target}/", *module.packages]
        run(command, log=logs / f"go-{module.name}.log", env=ENVIRONMENT, cwd=pins.MODULES / module.name)
        absent = [program for program in module.programs() if not (target / program).is_file()]
        if absent:
            raise ClusterError(f"module {module.name} did not build {', '.join(absent)}")

    if not cache.has("go", key):
        with progress.step(f"Building Go module {module.name}", usual_s=module.usual_s):
            return cache.entry("go", key, compile_into)
    return cache.entry("go", key, compile_into)


def build_all(cache: Cache, *, progress: Progress, logs: Path) -> dict[str, Path]:
    """Program name to file for every module. One after the other: `go build` uses all cores by itself."""
    version = go_version()
    programs: dict[str, Path] = {}
    for module in pins.GO_MODULES:
        folder = build(cache, module, version=version, progress=progress, logs=logs)
        programs |= {program: folder / program for program in module.programs()}
    return programs


def module_source(module_path: str, module: GoModule) -> Path:
    """Where Go unpacked the source of a dependency (kind's node image files are read from there)."""
    folder = pins.MODULES / module.name
    run_env = dict(ENVIRONMENT)
    listed = output(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module_path], env=run_env, cwd=folder
    ).strip()
    if not listed:
        output(["go", "mod", "download", module_path], env=run_env, cwd=folder, timeout_s=300)
        listed = output(["go", "list", "-m", "-f", "{{.Dir}}", module_path], env=run_env, cwd=folder).strip()
    return Path(listed)
