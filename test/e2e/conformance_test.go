package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadReport(t *testing.T) {
	const report = `<?xml version="1.0"?><testsuites tests="4"><testsuite name="Kubernetes e2e suite">
		<testcase name="[SynchronizedBeforeSuite]" status="passed"/>
		<testcase name="[It] [sig-network] Services should serve" status="passed"/>
		<testcase name="[It] [sig-network] DNS should answer" status="failed"><failure>timeout</failure></testcase>
		<testcase name="[It] [sig-network] not now" status="pending"/>
		<testcase name="[It] [sig-storage] not chosen" status="skipped"/>
		<testcase name="[SynchronizedAfterSuite]" status="interrupted"/>
	</testsuite></testsuites>`
	passed, failed, err := readReport([]byte(report))
	if err != nil || passed != 1 {
		t.Errorf("%d passed, %v; want 1", passed, err)
	}
	if diff := cmp.Diff([]string{"[It] [sig-network] DNS should answer", "[SynchronizedAfterSuite]"}, failed); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	for _, damaged := range []string{"", "<testsuites></testsuites>", "<testsuites"} {
		if _, _, err := readReport([]byte(damaged)); err == nil {
			t.Errorf("%q is read as a report", damaged)
		}
	}
}
