#!/usr/bin/env bash
# Builds the programs of a Go module of the laboratory: kubelab, containerd.
# The first build compiles up to 2,300 packages and takes minutes, so this shows
# how far it is: one line that moves on a terminal, a line every 15 s elsewhere.
# usage: hack/build-module.sh MODULE_DIR PACKAGES OUTPUT UPSTREAM VARIABLE
# OUTPUT is a file or, with a slash at its end, a directory. VARIABLE is set to
# the version of the module UPSTREAM.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if (($# != 5)); then
	sed -n 's/^# usage: /usage: /p' "${BASH_SOURCE[0]}" >&2
	exit 2
fi
packages=$2 upstream=$4 variable=$5
name=$(basename "$1")
case $3 in
/*) out=$3 ;;
*) out=$PWD/$3 ;;
esac
cd "$root/$1"
export CGO_ENABLED=0

pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true' EXIT

tty=false
[ -t 1 ] && tty=true
interval=$($tty && echo 1 || echo 15)
last=-$interval

clock() { printf '%dm%02ds' $((SECONDS / 60)) $((SECONDS % 60)); }

# say TEXT prints progress, at most once per interval.
say() {
	((SECONDS - last >= interval)) || return 0
	last=$SECONDS
	if $tty; then
		printf '\r\033[K%s: %s, %s' "$name" "$1" "$(clock)"
	else
		printf '%s: %s, %s\n' "$name" "$1" "$(clock)"
	fi
}

# each_line HANDLER COMMAND... runs COMMAND, gives each line it prints to HANDLER
# (an empty line when a second passes without one), and returns its status.
each_line() {
	local handler=$1 line rc
	shift
	exec {lines}< <(exec "$@" 2>&1)
	pid=$!
	while true; do
		rc=0
		IFS= read -r -t 1 -u "$lines" line || rc=$?
		if ((rc == 0)); then
			"$handler" "$line"
		elif ((rc > 128)); then
			"$handler" ""
		else
			break
		fi
	done
	exec {lines}<&-
	rc=0
	wait "$pid" || rc=$?
	pid=
	return "$rc"
}

kept=
keep() {
	if [ -n "$1" ]; then kept+=$1$'\n'; fi
}

fail() {
	if $tty; then printf '\n'; fi
	printf '%s' "$kept" >&2
	printf '%s: %s\n' "$name" "$1" >&2
	exit 1
}

modules=0
todo=0
on_list() {
	case $1 in
	"go: downloading "*) modules=$((modules + 1)) ;;
	"stale true") todo=$((todo + 1)) ;;
	"" | "stale false") ;;
	*) keep "$1" ;;
	esac
	if ((modules > 0)); then
		say "fetching modules, $modules so far"
	else
		say "listing packages"
	fi
}
each_line on_list go list -trimpath -deps -f 'stale {{.Stale}}' "$packages" || fail "cannot list its packages"
kept=

compiled=0
on_build() {
	case $1 in
	"") ;;
	"go: downloading "*) ;;
	*[[:space:]]* | *.go:*) keep "$1" ;; # an error, not the name of a package
	*) compiled=$((compiled + 1)) ;;
	esac
	if ((compiled < todo)); then
		say "compiling $compiled/$todo packages"
	else
		say "linking"
	fi
}
version=$(go list -m -f '{{.Version}}' "$upstream")
mkdir -p "${out%/*}"
last=-$interval
each_line on_build go build -v -trimpath -ldflags "-s -w -X $variable=$version" -o "$out" "$packages" || fail "the build failed"

if $tty; then printf '\r\033[K'; fi
printf '%s: %s %s built, %s packages compiled, %s\n' "$name" "$upstream" "$version" "$compiled" "$(clock)"
