package node

import "testing"

// The daemon is killed while a running sandbox gets a device of the host, which has the mark of
// the sandbox and is still on the host. The next daemon removes the mark, and leaves the sandbox
// and its packet filter alone.
func TestStrayDeviceOfARunningSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("web", "u1")
		if _, err := w.addAsking("c1", "web", "u1", `{"portMappings":[{"hostPort":8080,"containerPort":80}]}`); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"net1", "eth0"} { // a sandbox may have changed the mark
			w.stop()
			w.kernel.change(func(links map[string]fakeLink) { links["eth5"] = fakeLink{containerID: "c1", ifName: name} })
			w.start()
			filtered()
			w.wantLinks("c1/eth0")
			w.wantRecords("c1")
			w.filter.want(t, "ports", "tcp . 8080 : 10.244.1.5 . 80")
			if w.network.ledger.Get("c1").Attached() == nil {
				t.Errorf("with a mark of %s it has no ADD any more", name)
			}
		}
	})
}
