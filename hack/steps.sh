# Sourced: runs named steps one after the other, with a banner and the time
# each took, and says at the end, or when one fails, how far it came.
# shellcheck shell=bash

steps_started=$SECONDS
steps_done=()

# step NAME COMMAND... runs COMMAND; a failure ends the script.
step() {
	local name=$1 started=$SECONDS rc=0
	shift
	printf '\n=== %s\n' "$name"
	"$@" || rc=$?
	if ((rc != 0)); then
		printf '\n=== FAILED: %s (status %d, after %ds)\n' "$name" "$rc" $((SECONDS - started)) >&2
		printf '    command: %s\n' "$*" >&2
		exit "$rc"
	fi
	steps_done+=("$(printf '%5ds  %s' $((SECONDS - started)) "$name")")
}

# steps_summary TASK prints what was done.
steps_summary() {
	printf '\n=== %s: OK in %dm%02ds\n' "$1" $(((SECONDS - steps_started) / 60)) $(((SECONDS - steps_started) % 60))
	printf '%s\n' "${steps_done[@]}"
}
