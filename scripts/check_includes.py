#!/usr/bin/env python3
"""Fails when a source file includes against the direction of the rooms (README, "Map of src/")."""
import re
import sys
from pathlib import Path

MAY_INCLUDE = {
    "base": set(),
    "config": {"base"},
    "ranks": {"base"},
    "kernels": {"base"},
    "autograd": {"base"},
    "data": {"base"},
    "format": {"base"},
    "ops": {"autograd", "kernels", "base"},
    "model": {"ops", "autograd", "config", "base"},
    "train": {"model", "ops", "autograd", "kernels", "data", "config", "format", "ranks", "base"},
    "cli": {"train", "model", "ops", "autograd", "kernels", "data", "config", "format", "ranks", "base"},
}
LIBRARY_ROOMS = {
    "nlohmann/": {"config", "train", "format", "cli"},
    "cxxopts": {"cli"},
    "omp.h": {"kernels"},
    "mpi.h": {"ranks"},
}


def faults(src: Path) -> list[str]:
    found = []
    for path in sorted(src.glob("*/*.[hc]*")):
        room = path.parent.name
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not (match := re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)):
                continue
            kind, name = match.groups()
            other = name.split("/")[0]
            if kind == '"' and (other not in MAY_INCLUDE or other not in MAY_INCLUDE[room] | {room}):
                found.append(f"{path}:{number}: {room}/ may not include {name}")
            for library, rooms in LIBRARY_ROOMS.items():
                if kind == "<" and name.startswith(library) and room not in rooms:
                    found.append(f"{path}:{number}: {library} belongs to {', '.join(sorted(rooms))} only")
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "src"
    problems = faults(root)
    print("\n".join(problems) if problems else "include directions: all as in the map")
    sys.exit(bool(problems))
