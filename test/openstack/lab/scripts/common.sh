# Sourced by the scripts of the laboratory with the state directory as $1. It reads the
# settings that the Go package has written, and defines the functions that start programs.
# shellcheck shell=bash disable=SC2034,SC2154 # variables come from, and go to, other files
state=${1:?the state directory of the laboratory}
# shellcheck source=/dev/null
. "$state/settings"
scripts=$state/scripts run=$state/run log=$state/log etc=$state/etc
tree=$cache/packages          # the unpacked packages
share=$tree/usr/share
export DEBIAN_FRONTEND=noninteractive

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# tail_die LOG MESSAGE prints the end of a log before the message.
tail_die() {
	tail -n 5 "$1" >&2 || true
	die "$2; its log is $1"
}

# step MESSAGE reports progress on standard output, which the Go package forwards.
step() { printf '%s\n' "$*"; }

# release COMMAND... runs a program of the release.
release() { "$scripts/exec.sh" "$state" "$@"; }

# started PID prints the start time of a process that lives.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }

# A program is known by run/NAME.id: its process ID and start time. alive NAME succeeds
# if both still agree.
alive() {
	local pid start
	read -r pid start 2>/dev/null <"$run/$1.id" || return 1
	[ -n "$start" ] && [ "$(started "$pid")" = "$start" ]
}
note() { printf '%s %s\n' "$2" "$(started "$2")" >"$run/$1.id"; }

# background NAME COMMAND... starts a program in a session of its own.
background() {
	local name=$1
	shift
	setsid "$scripts/exec.sh" "$state" "$@" </dev/null >>"$log/$name.log" 2>&1 9>&- &
	note "$name" $!
}

# daemon NAME DIRECTORY COMMAND... starts a program of Open vSwitch or OVN, which goes to
# the background when it is ready. Its sockets are in the directory. The array inside has
# the command that enters its network namespace.
inside=()
daemon() {
	local name=$1 dir=$2
	shift 2
	! alive "$name" || return 0
	rm -f "$dir/$name.pid" "$run/$name.id"
	OVS_RUNDIR=$dir OVN_RUNDIR=$dir "${inside[@]}" "$scripts/exec.sh" "$state" "$@" \
		-vconsole:off --log-file="$log/$name.log" --pidfile="$dir/$name.pid" --detach --no-chdir 9>&- ||
		tail_die "$log/$name.log" "$name does not start"
	note "$name" "$(cat "$dir/$name.pid")"
}
