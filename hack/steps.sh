# Sourced: runs named steps one after the other, with a banner and the time
# of each, and prints at the end, or when one fails, how far it came.
# shellcheck shell=bash

steps_started=$SECONDS
steps_done=()
step_result=
steps_skipped=0

# banner TEXT prints the beginning of a step, with the time since the first.
banner() { printf '\n=== %d:%02d %s\n' $(((SECONDS - steps_started) / 60)) $(((SECONDS - steps_started) % 60)) "$1"; }

# step NAME COMMAND... runs COMMAND; a failure ends the script. A function that is run may
# set step_result, which the summary shows.
step() {
	local name=$1 started=$SECONDS rc=0
	shift
	step_result=
	banner "$name"
	"$@" || rc=$?
	step_ended "$name" "$started" "$rc" "$*"
}

# step_ended NAME STARTED STATUS COMMAND
step_ended() {
	local name=$1 started=$2 rc=$3
	if ((rc != 0)); then
		printf '\n=== FAILED: %s (status %d, after %ds)\n' "$name" "$rc" $((SECONDS - started)) >&2
		printf '    command: %s\n' "$4" >&2
		exit "$rc"
	fi
	steps_done+=("$(printf '%5ds  %s' $((SECONDS - started)) "$name${step_result:+: $step_result}")")
}

# beside NAME COMMAND... begins COMMAND, which runs beside the next steps until joined. Its
# output is shown then. If the script ends before, COMMAND and its children are ended.
beside() {
	beside_name=$1 beside_started=$SECONDS beside_out=$(mktemp)
	shift
	beside_command=$*
	banner "$beside_name: begun, its output follows later"
	# Job control gives it a process group of its own.
	set -m
	"$@" >"$beside_out" 2>&1 &
	beside_pid=$!
	set +m
	trap beside_end EXIT
}

# beside_end ends the command of beside, and waits for it.
beside_end() {
	kill -TERM -- "-$beside_pid" 2>/dev/null || true
	wait "$beside_pid" || true
	printf '=== ended: %s; its last lines:\n' "$beside_name" >&2
	tail -n 20 "$beside_out" >&2
	rm -f "$beside_out"
}

# joined CHECK... waits for the command of beside, shows its output, and ends its step. After a
# success CHECK is called with the file of the output as its last argument, and may set step_result.
joined() {
	local rc=0
	step_result=
	banner "$beside_name"
	tail -n +1 -f --pid="$beside_pid" "$beside_out"
	wait "$beside_pid" || rc=$?
	trap - EXIT
	((rc != 0)) || "$@" "$beside_out" || rc=$?
	rm -f "$beside_out"
	step_ended "$beside_name" "$beside_started" "$rc" "$beside_command"
}

# optional NAME COMMAND... is step, but a status of 3 means that this machine lacks
# something that COMMAND has named: the summary lists the step as skipped. With CI=true it is a
# failure, as any other.
optional() {
	local name=$1 started=$SECONDS rc=0
	shift
	step_result=
	banner "$name"
	"$@" || rc=$?
	if ((rc == 3)) && [ "${CI:-}" != true ]; then
		printf '=== SKIPPED: %s\n' "$name"
		steps_done+=("skipped $name")
		steps_skipped=$((steps_skipped + 1))
		return
	fi
	step_ended "$name" "$started" "$rc" "$*"
}

# steps_summary TASK prints the steps and their times.
steps_summary() {
	printf '\n=== %s: OK in %dm%02ds' "$1" $(((SECONDS - steps_started) / 60)) $(((SECONDS - steps_started) % 60))
	((steps_skipped == 0)) || printf ', but steps were skipped: %d' "$steps_skipped"
	printf '\n'
	printf '%s\n' "${steps_done[@]}"
}
