package addresses

import (
	"testing"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/test/clitest"
	"fairlead.dev/fairlead/test/golden"
)

// outputs returns the output of the commands on the clusters of clitest, by name of the
// golden file.
func outputs(t *testing.T) map[string]string {
	t.Helper()
	render := clitest.Renderer(t)
	out := map[string]string{}
	for file, args := range map[string][]string{
		"who":       {"192.168.4.2", "default"},
		"who-past":  {"192.168.4.66", "default", "2026-03-02T02:00:00Z"},
		"who-all":   {"192.168.4.9"},
		"who-never": {"192.0.2.1"},
	} {
		args = append(args, "", "")
		q, err := parseQuestion(args[0], args[1], args[2], clitest.Now)
		if err != nil {
			t.Fatal(err)
		}
		v := buildWho(q, clitest.Addressed())
		out[file+".txt"] = render(output.TableFormat, nil, func() string { return whoText(v, clitest.Now) })
		if file != "who-past" {
			out[file+".json"] = render(output.JSONFormat, v, nil)
		}
	}
	openStack, leftover := clitest.OnOpenStack(), clitest.WithLostNode(clitest.OnOpenStack(clitest.Leaving))
	for file, v := range map[string]gcView{
		"gc-clean": buildGC(auditOf(clitest.Sound()), openStack), "gc": buildGC(auditOf(clitest.Damaged()), leftover),
	} {
		out[file+".txt"] = render(output.TableFormat, nil, func() string { return gcText(v, clitest.Now) })
		out[file+".json"] = render(output.JSONFormat, v, nil)
	}
	found := auditView{Report: auditOf(clitest.Damaged())}
	out["audit.txt"] = render(output.TableFormat, nil, func() string { return auditText(found) })
	out["audit.json"] = render(output.JSONFormat, found, nil)
	clean := auditView{OK: true, Report: auditOf(clitest.Sound())}
	out["audit-clean.txt"] = render(output.TableFormat, nil, func() string { return auditText(clean) })
	out["audit-clean.json"] = render(output.JSONFormat, clean, nil)
	return out
}

func TestOutputs(t *testing.T) {
	for name, got := range outputs(t) {
		t.Run(name, func(t *testing.T) { golden.Equal(t, name, got) })
	}
}

// TestManualNamesEveryField checks that the manual names every JSON field and state of
// this package.
func TestManualNamesEveryField(t *testing.T) {
	clitest.ManualNames(t, "../../../docs/user/cli.md", []string{
		string(addressFree), string(addressAllocated), string(addressCooling), string(addressHeld), string(addressReserved),
		string(addressWithheld), string(addressDamaged), string(addressOutside), string(addressUnknown),
	}, whoView{}, auditView{}, gcView{})
}
