# Reads the output of `go test` and prints which tests failed, and why, for readers of
# the end of a long log. Of the output of a test it prints the last six lines that name
# their place in the source, with the line after each; logs of programs are left out.

function clip(line) { return length(line) > 200 ? substr(line, 1, 200) "..." : line }

$1 == "===" { if ($2 != "PAUSE") current = $3; next }

/^ *--- (FAIL|PASS|SKIP): / {
	current = ""
	if ($2 == "FAIL:") {
		current = $3
		failed[++fails] = $3
	}
	next
}

/^FAIL\t|^panic: |^fatal error: |WARNING: DATA RACE|\[build failed\]/ { verdicts[++ends] = clip($0) }
/^(FAIL|ok|PASS|---)/ { current = ""; next }
/^ +[a-z0-9_]+\.go:[0-9]+: / { more = 2 }
current != "" && more > 0 { lines[current, ++count[current]] = clip($0); more-- }

END {
	for (i = 1; i <= fails && i <= 6; i++) {
		name = failed[i]
		print "--- FAIL: " name
		from = count[name] > 6 ? count[name] - 5 : 1
		for (n = from; n <= count[name]; n++) print lines[name, n]
	}
	if (fails > 6) print "and " fails - 6 " more"
	for (i = 1; i <= ends && i <= 6; i++) print verdicts[i]
}
