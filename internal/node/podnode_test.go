package node

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nettest"
)

// podNode is a node on which the sandbox c1 of pod p is a network namespace.
type podNode struct {
	*testNode
	host *link.Sockets
	pod  *link.Namespace
	key  types.NamespacedName
	// hostLinks are the links of the host without the pod.
	hostLinks []string
}

// newPodNode returns a node without its daemon; the caller adds the links of the host and
// sets hostLinks.
func newPodNode(t *testing.T) *podNode {
	t.Helper()
	return &podNode{host: nettest.NewHost(t), pod: nettest.NewNamespace(t)}
}

// serve makes the pod and its PodAttachment known to a daemon.
func (n *podNode) serve(w *testNode, pa *v1alpha1.PodAttachment) {
	n.testNode = w
	w.api.putPod("p", "u1")
	n.key = apiserver.KeyOf(w.api.put(pa))
	settle()
}

func (n *podNode) request(verb string) cniproto.Request {
	return request(verb, "c1", n.pod.Path(), "p", "u1")
}

// plugged sends an ADD that must succeed, and returns its answer.
func (n *podNode) plugged() []byte {
	n.t.Helper()
	raw, err := n.handle(n.request(cniproto.VerbAdd))
	if err != nil {
		n.t.Fatalf("ADD: %v", err)
	}
	settle()
	return raw
}

// check sends CHECK with the answer to the ADD.
func (n *podNode) check(result []byte) error {
	r := n.request(cniproto.VerbCheck)
	r.Config = withPrevResult(n.t, r.Config, result)
	_, err := n.handle(r)
	return err
}

// damageRecord makes the record of sandbox c1 unreadable, and returns its path.
func (w *testNode) damageRecord() string {
	w.t.Helper()
	path := filepath.Join(w.dir, ledger.RecordsDir, "c1"+ledger.RecordSuffix)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}
