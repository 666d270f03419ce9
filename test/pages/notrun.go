package pages

import "strings"

// notRun are the commands of the pages that no test gives as they stand, by their first
// words, with the reason.
var notRun = []struct{ begins, why string }{
	{"make ", "CI runs make ci and make nightly, of which most targets are steps. TestTargets of docs looks for each target and its variables"},
	{"go test ", "CI tests every package"},
	{"go build -o bin/cniconform ", "CI tests the program by go test ./test/cniconform"},
	{"ip netns exec test bin/cniconform ", "CI tests the program by go test ./test/cniconform"},
	{"bin/bench ", "CI runs it by make bench, with other flags"},
	{"bin/e2e ", "CI runs it by make e2e, with other flags"},
	{"bin/kubelab ", "CI's tests run it, and test/kubelab tests these verbs"},
	{"bin/threat ", "CI runs it by make threat, with other flags"},
	{"bin/vm ", "test/vm runs it, where the machine can have a VM"},
	{"export KUBECONFIG=", "the player of the tours sets both variables"},
	{"LAB=", "needs make openstack-lab, which CI does not run"},
	{"$LAB/bin/", "needs make openstack-lab, which CI does not run"},
	{"FAIRLEAD_OPENSTACK_LAB=", "needs make openstack-lab, which CI does not run"},
	{"openstack network trunk create ", "needs a client of OpenStack and a cloud; test/openstack makes the trunks of its machines by Neutron's API"},
	{"skopeo ", "there is no registry; tools/packaging tests the archive and the layout"},
	{"sha256sum --check ", "the files are those of a published release; tools/packaging/release tests SHA256SUMS"},
	{"tar -xf fairlead-manifests-", "the file is that of a published release; tools/packaging/release tests its content"},
	{"git clone ", "there is no published repository"},
	{"diff -r bin/release/", "the files are those of a published release; make release-check makes a release twice and compares"},
	{"fairlead-controller --config ", "test/integration runs the programs, with paths of its own"},
	{"fairlead-node run --config ", "test/integration runs the programs, with paths of its own"},
	{"fairlead status", "the tours give it, where all programs run"},
	{"fairlead check", "needs pods with containers; make e2e gives it with further flags"},
	{"fairlead ui", "it ends by Ctrl-C; internal/cli/ui tests the page, and test/deploy that of an installation"},
	{"tcpdump ", "it ends by Ctrl-C, and is not among the packages of CI"},
	{"kubectl -n fairlead-system port-forward ", "it ends by Ctrl-C, and needs a kubelet; test/deploy tests the live picture of an installation"},
	{"kubectl -n fairlead-system logs ", "needs the logs of a kubelet; test/e2e removes an installation on nodes with kubelets"},
}

// WhyNotRun returns the reason why no test gives a command, and its entry in the list; ""
// if a test has to.
func WhyNotRun(command string) (entry, why string) {
	for _, n := range notRun {
		if strings.HasPrefix(command, n.begins) {
			return n.begins, n.why
		}
	}
	return "", ""
}

// NotRun returns the first words of all commands that no test gives.
func NotRun() []string {
	out := make([]string, 0, len(notRun))
	for _, n := range notRun {
		out = append(out, n.begins)
	}
	return out
}
