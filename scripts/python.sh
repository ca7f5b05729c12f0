#!/usr/bin/env bash
# Prints the first Python that can import the modules named: $PYTHON, .venv/bin/python, python3, /usr/bin/python3.
# The first python3 on the path often cannot see the packages of the system, so one look is not enough.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

imports="import sys"
for module in "$@"; do imports+=", $module"; done
for python in "${PYTHON:-}" "$root/.venv/bin/python" python3 /usr/bin/python3; do
  if [ -n "$python" ] && "$python" -c "$imports; sys.exit(sys.version_info < (3, 9))" >/dev/null 2>&1; then
    echo "$python"
    exit 0
  fi
done
exit 1
