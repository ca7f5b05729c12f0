#!/usr/bin/env bash
# Fetches Tiny Shakespeare, or makes a text from this project's own sources where there is no network.
#   scripts/get_data.sh [DIR]         DIR is data/ of this project by default
# The last line on stdout is the path of the text to train on; everything else is said on stderr.
# QKGPT_TINYSHAKESPEARE=FILE takes a copy at hand instead of the download; it is checked like one.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

say() { echo "get_data: $*" >&2; }

if [ $# -gt 1 ]; then say "usage: scripts/get_data.sh [DIR]"; exit 2; fi
dir=${1:-$root/data}
mkdir -p "$dir"
text=$dir/tinyshakespeare.txt
sources=$dir/sources.txt
part=$dir/.part.$$
trap 'rm -f "$part"' EXIT

digest() { if command -v sha256sum >/dev/null; then sha256sum < "$1"; else shasum -a 256 < "$1"; fi | cut -d ' ' -f 1; }

refuse_unless_right() {  # refuse_unless_right FILE WHAT
  local found
  found=$(digest "$1")
  if [ "$found" != "$sha256" ]; then
    say "$2 is not Tiny Shakespeare"
    say "  its sha256 is    $found"
    say "  it should be     $sha256"
    exit 1
  fi
}

download() {
  if command -v curl >/dev/null; then
    curl --fail --location --silent --show-error --connect-timeout 10 --max-time 60 --output "$part" "$url"
  elif command -v wget >/dev/null; then
    wget --quiet --tries=1 --timeout=10 --output-document="$part" "$url"
  else
    say "neither curl nor wget is installed"
    return 1
  fi
}

# C++ comes last so that the validation part, the end of the text, resembles what is trained on.
list_sources() {
  cd "$root"
  LC_ALL=C
  export LC_ALL
  printf '%s\n' *.md
  for folder in docs scripts src tests; do
    if [ -d "$folder" ]; then
      find "$folder" -type f \( -name '*.md' -o -name '*.py' -o -name '*.sh' -o -name '*.h' -o -name '*.cpp' \) | sort
    fi
  done
}

write_sources() {
  list_sources | while IFS= read -r file; do
    if [ ! -f "$root/$file" ]; then continue; fi
    if command -v iconv >/dev/null && ! iconv -f UTF-8 -t UTF-8 "$root/$file" >/dev/null 2>&1; then
      say "leaving out $file: not valid UTF-8"
      continue
    fi
    cat "$root/$file"
  done
}

if [ -e "$text" ]; then
  refuse_unless_right "$text" "$text, which is there already,"
  say "$text is there already"
elif [ -n "${QKGPT_TINYSHAKESPEARE:-}" ]; then
  cat "$QKGPT_TINYSHAKESPEARE" > "$part"
  refuse_unless_right "$part" "$QKGPT_TINYSHAKESPEARE"
  mv "$part" "$text"
  say "Tiny Shakespeare copied from $QKGPT_TINYSHAKESPEARE to $text"
elif download; then
  refuse_unless_right "$part" "what $url gave (deleted)"
  mv "$part" "$text"
  say "Tiny Shakespeare downloaded to $text"
else
  say "no download: using this project's own sources as the text"
  if [ -e "$sources" ]; then
    say "$sources is there already (delete it to make it afresh)"
  else
    write_sources > "$part"
    mv "$part" "$sources"
    say "wrote $sources, $(wc -c < "$sources" | tr -d ' ') bytes"
  fi
  text=$sources
fi
echo "$text"
