#!/usr/bin/env bash
# Installs what building, testing and drawing need, and only what is missing: with apt-get on Debian and its
# kin, with Homebrew on macOS. Elsewhere it names what is missing.
#   scripts/setup.sh [--no-plots]     --no-plots leaves out what only figures need
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { echo "setup: $*" >&2; }

plots=yes
for argument in "$@"; do
  case $argument in
    --no-plots) plots=no ;;
    *) say "unknown argument $argument; usage: scripts/setup.sh [--no-plots]"; exit 2 ;;
  esac
done

read -r -a compiler <<< "${CXX:-c++}"
if [ "$(uname -s)" = Darwin ]; then
  system=macos
  if ! xcode-select -p >/dev/null 2>&1; then
    say "the command line tools are missing; run: xcode-select --install"
    exit 1
  fi
  if command -v brew >/dev/null; then  # Homebrew's headers lie outside the compiler's own path
    CPATH=$(brew --prefix)/include${CPATH:+:$CPATH}
    export CPATH
  fi
elif command -v apt-get >/dev/null; then
  system=debian
else
  system=other
fi

have_compiler() { printf '#include <concepts>\n' | "${compiler[@]}" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; }
have_header() { printf '#include <%s>\n' "$1" | "${compiler[@]}" -std=c++20 -x c++ -E - >/dev/null 2>&1; }
have_catch2() { have_header catch2/catch_all.hpp || have_header catch2/catch.hpp; }
have_builder() { command -v make >/dev/null || [ "${CMAKE_GENERATOR:-}" = Ninja ]; }
have_openmp() { [ "$system" != macos ] || [ -d "$(brew --prefix 2>/dev/null)/opt/libomp" ]; }
have_python() { "$root/scripts/python.sh" "$@" >/dev/null; }
have_https() {
  if [ "$system" = debian ] && [ ! -s /etc/ssl/certs/ca-certificates.crt ]; then return 1; fi
  command -v curl >/dev/null || command -v wget >/dev/null
}
have_cmake() {
  local version major minor
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p') || return 1
  IFS=. read -r major minor _ <<< "$version"
  [ "${major:-0}" -gt 3 ] || { [ "${major:-0}" -eq 3 ] && [ "$minor" -ge 25 ]; }
}

missing=()
need() {  # need DEBIAN_PACKAGES HOMEBREW_PACKAGES CHECK...: notes the packages when the check fails
  local names=$1
  [ "$system" = macos ] && names=$2
  shift 2
  "$@" || missing+=("$names")
}
look_for_required() {
  missing=()
  need g++ "(a C++20 compiler)" have_compiler
  need cmake cmake have_cmake
  need make make have_builder
  need libcxxopts-dev cxxopts have_header cxxopts.hpp
  need nlohmann-json3-dev nlohmann-json have_header nlohmann/json.hpp
  need catch2 catch2 have_catch2
  need libgomp1 libomp have_openmp
}
look_for_optional() {  # without these the program still builds and trains
  missing=()
  need python3 python have_python
  need "curl ca-certificates" curl have_https
  if [ "$plots" = yes ]; then
    need "python3-matplotlib python3-scipy" "python-matplotlib scipy" have_python numpy scipy matplotlib
  fi
}

quietly() {  # the end of what a command says is shown, and only when it fails
  local said
  said=$("$@" 2>&1) || { tail -n 12 <<< "$said" >&2; return 1; }
}

updated=no
install() {
  local packages
  read -r -a packages <<< "$*"
  case $system in
    debian)
      local run=(env DEBIAN_FRONTEND=noninteractive)
      if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
          say "missing: ${packages[*]}; there is no sudo: run $root/scripts/setup.sh as root, or apt-get install these"
          return 1
        fi
        run=(sudo "${run[@]}")
      fi
      say "installing with apt-get, which may take a minute: ${packages[*]}"
      if [ "$updated" = no ]; then
        updated=yes
        quietly "${run[@]}" apt-get update -qq || say "apt-get update failed; trying with the package lists at hand"
      fi
      quietly "${run[@]}" apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 \
        "${packages[@]}"
      ;;
    macos)
      if ! command -v brew >/dev/null; then
        say "missing: ${packages[*]}; they come with Homebrew (https://brew.sh), which is not installed"
        return 1
      fi
      say "installing with brew: ${packages[*]}"
      brew install "${packages[@]}" >&2
      ;;
    other)
      say "missing, by Debian's names: ${packages[*]}; install them with this system's package manager"
      return 1
      ;;
  esac
}

done_something=no
look_for_required
if [ "${#missing[@]}" -gt 0 ]; then
  done_something=yes
  install "${missing[@]}" || { say "could not install what the build needs: ${missing[*]}"; exit 1; }
  look_for_required
  if [ "${#missing[@]}" -gt 0 ]; then
    say "still missing or too old after installing: ${missing[*]}"
    have_cmake || say "cmake 3.25 or later is needed; for instance: python3 -m venv .venv && .venv/bin/pip install cmake, then PATH=\"$root/.venv/bin:\$PATH\""
    have_compiler || say "${compiler[*]} does not compile C++20 (gcc 12 or clang 14 do); another one is chosen by CXX=..."
    exit 1
  fi
fi
look_for_optional
if [ "${#missing[@]}" -gt 0 ]; then
  done_something=yes
  install "${missing[@]}" || say "going on without ${missing[*]}: figures, tables or the download may be left out"
fi
if [ "$done_something" = yes ]; then say "done"; else say "nothing to install"; fi
