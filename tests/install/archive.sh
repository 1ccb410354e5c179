#!/usr/bin/env bash
# From an archive of `cargo xtask dist`, or a Debian package, to an answer, as docs/install.md says.
set -euo pipefail
file=$1
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

case $file in
*.deb)
  dpkg-deb --extract "$file" "$work"
  taper=$work/usr/bin/taper page=$work/usr/share/man/man1/taper-serve.1
  complete=$work/usr/share/bash-completion/completions/taper
  ;;
*)
  (cd "$(dirname "$file")" && sha256sum --check --quiet "$(basename "$file").sha256")
  tar xzf "$file" -C "$work" --strip-components 1
  taper=$work/taper page=$work/man/man1/taper-serve.1 complete=$work/completions/taper.bash
  ;;
esac
# Nothing of the user's home is needed.
export HOME=$work/home
mkdir "$HOME"
"$taper" --version
grep -q 'kv\\-cache\\-dtype' "$page"
bash -c "source '$complete' && complete -p taper" >/dev/null
"$taper" run "What is 12 + 30?" --max-tokens 20
"$taper" serve --port 0 >"$work/log" 2>&1 &
server=$!
for _ in $(seq 100); do
  url=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$work/log" | head -1 || true)
  [ -z "$url" ] || break
  sleep 0.1
done
curl --fail --silent --show-error "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}' | grep '"finish_reason"' >/dev/null
curl --fail --silent "$url/" | grep -i '<!doctype html>' >/dev/null
for tool in claude codex opencode aider; do "$taper" launch "$tool" --url "$url" --print | grep "$url" >/dev/null; done
kill -TERM "$server"
wait "$server"
server=
echo "1 passed, 0 failed"
