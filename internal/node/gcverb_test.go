package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

func gcRequest(fields string) cniproto.Request {
	return cniproto.Request{
		Verb:   cniproto.VerbGC,
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead"` + fields + `}`),
	}
}

// unpin removes the path of a namespace, as a runtime does when it ends a sandbox. The
// links into the namespace stay until the kernel ends it.
func (w *testNode) unpin(containerID string) {
	w.kernel.mu.Lock()
	defer w.kernel.mu.Unlock()
	delete(w.kernel.namespaces, w.netns(containerID))
}

// c1 and c2 are alive, the namespace of c3 and c4 is gone.
func TestGC(t *testing.T) {
	living := []string{"c1/eth0", "c1/net1", "c2/eth0"}
	all := append([]string{"c3/eth0", "c4/eth0"}, living...)
	const c1, c3, c4 = `{"containerID":"c1","ifname":"eth0"}`, `{"containerID":"c3","ifname":"eth0"}`, `{"containerID":"c4","ifname":"eth0"}`
	cases := []struct {
		name, fields string
		code         int
		words        []string
		left         []string
	}{
		{name: "absent", left: all},
		{name: "only the living are listed", fields: `,"cni.dev/valid-attachments":[` + c1 + `,{"containerID":"c2","ifname":"eth0"}]`, left: living},
		{name: "one of the living is listed", fields: `,"cni.dev/valid-attachments":[` + c1 + `]`, left: living},
		{name: "one of the dead is listed", fields: `,"cni.dev/valid-attachments":[` + c3 + `]`, left: append([]string{"c3/eth0"}, living...)},
		{name: "under another interface", fields: `,"cni.dev/valid-attachments":[{"containerID":"c3","ifname":"net7"}]`, left: append([]string{"c3/eth0"}, living...)},
		{name: "cni#1101: the other spelling", fields: `,"cni.dev/attachments":[` + c4 + `]`, left: append([]string{"c4/eth0"}, living...)},
		{name: "both spellings", fields: `,"cni.dev/attachments":[` + c3 + `],"cni.dev/valid-attachments":[` + c4 + `]`, left: all},
		{name: "none", fields: `,"cni.dev/valid-attachments":[]`, left: living},
		{name: "null, as libcni says for a network that no pod uses", fields: `,"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, left: living},
		{name: "unknown ones", fields: `,"cni.dev/valid-attachments":[{"containerID":"c9","ifname":"eth0"}]`, left: living},
		{name: "switched off", fields: `,"disableGC":true,"cni.dev/valid-attachments":[]`, left: all},
		{
			name: "no list", fields: `,"cni.dev/valid-attachments":"c1"`, left: all,
			code: cniproto.CodeInvalidConfig, words: []string{"cni.dev/valid-attachments", `"c1"`},
		},
		{
			name: "an entry without a container ID", fields: `,"cni.dev/valid-attachments":[{"containerID":"c1"},{"ifname":"eth0"}]`, left: all,
			code: cniproto.CodeInvalidConfig, words: []string{"cni.dev/valid-attachments[1].containerID"},
		},
		{
			name: "a switch that is none", fields: `,"disableGC":"yes"`, left: all,
			code: cniproto.CodeInvalidConfig, words: []string{"disableGC", `"yes"`},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.pod("p1", "u1", "eth0", "net1")
				w.mustAdd("c1", "p1", "u1")
				for _, n := range []string{"2", "3", "4"} {
					w.pod("p"+n, "u"+n)
					w.mustAdd("c"+n, "p"+n, "u"+n)
				}
				w.unpin("c3")
				w.unpin("c4")
				_, err := w.handle(gcRequest(tc.fields))
				nodetest.WantCode(w.t, err, tc.code, tc.words...)
				settle()
				w.wantLinks(tc.left...)
			})
		})
	}
}

// A GC for another network that uses Fairlead's plugin, and a GC for a network of
// Fairlead under another name, remove no live sandbox either.
func TestGCOfAnotherNetwork(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p1", "u1")
		w.mustAdd("c1", "p1", "u1")
		for _, name := range []string{"fairlead", "multus-cni-network", "operators-own"} {
			r := gcRequest(`,"cni.dev/valid-attachments":null`)
			r.Config = json.RawMessage(strings.Replace(string(r.Config), `"name":"fairlead"`, `"name":"`+name+`"`, 1))
			_, err := w.handle(r)
			nodetest.WantCode(w.t, err, 0)
			settle()
			w.wantLinks("c1/eth0")
		}
	})
}

// One sandbox that cannot be removed stops no other, and the answer has all errors.
func TestGCGoesOnOverErrors(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		for _, n := range []string{"1", "2", "3"} {
			w.pod("p"+n, "u"+n)
			w.mustAdd("c"+n, "p"+n, "u"+n)
		}
		// A deletion that cannot be recorded is done at once, and fails for two
		// sandboxes.
		records := filepath.Join(w.dir, ledger.RecordsDir)
		if err := errors.Join(os.Rename(records, records+".away"), os.WriteFile(records, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		stuck := map[string]bool{plug.RoutedName("c1", "eth0"): true, plug.RoutedName("c2", "eth0"): true}
		w.kernel.setHook(func(_ context.Context, step, what string) error {
			if step == "detach" && stuck[what] {
				return errors.New("device busy")
			}
			return nil
		})
		for _, id := range []string{"c1", "c2", "c3"} {
			w.unpin(id)
		}
		_, err := w.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
		var e *cniproto.Error
		if !errors.As(err, &e) || !strings.Contains(e.Details, "sandbox c1") || !strings.Contains(e.Details, "sandbox c2") || !strings.Contains(e.Details, "device busy") {
			t.Errorf("error %+v: want both sandboxes named", e)
		}
		w.wantLinks("c1/eth0", "c2/eth0")
		w.kernel.setHook(nil)
	})
}

// A sandbox whose ADD ran while the runtime made its list is not in the list, and stays.
func TestGCLeavesWhatCameAfterIt(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1")
		hold, held := make(chan struct{}), make(chan struct{})
		w.kernel.setHook(func(_ context.Context, step, _ string) error {
			if step == "attach" {
				close(held)
				<-hold
			}
			return nil
		})
		done := make(chan error, 2)
		go func() {
			_, err := w.add("c1", "p", "u1")
			done <- err
		}()
		<-held
		go func() {
			_, err := w.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
			done <- err
		}()
		settle() // GC waits for the ADD
		w.kernel.setHook(nil)
		close(hold)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		settle()
		w.wantLinks("c1/eth0")
	})
}

func FuzzGCConfig(f *testing.F) {
	f.Add([]byte(`{"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":null,"disableGC":false}`))
	f.Add([]byte(`{"cni.dev/valid-attachments":[null,[],{}]}`))
	f.Add([]byte(`{"disableGC":1}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		valid, told, err := answer.ValidSandboxes(config)
		if err != nil {
			wantCoded(t, err)
		}
		if (err != nil || !told) && len(valid) > 0 {
			t.Errorf("%v without a list", valid)
		}
		if valid[""] {
			t.Error("the empty container ID is valid")
		}
	})
}

// An ADD that waits for its record delays neither a GC nor the requests behind it. This
// holds for the ADD of a pod's own interface and for that of another plugin.
func TestGCWhileAddsWait(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("there", "u1")
		w.mustAdd("c1", "there", "u1")
		added := make(chan error, 2)
		go func() {
			_, err := w.add("c2", "late", "u2")
			added <- err
		}()
		w.kernel.namespace(w.netns("c3"))
		go func() {
			_, err := w.ipam("ADD", "c3", "eth0", "later", "u3", macvlan)
			added <- err
		}()
		settle()
		start := time.Now()
		_, err := w.handle(gcRequest(`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
		nodetest.WantCode(w.t, err, 0)
		if err := w.del("c1"); err != nil {
			w.t.Error(err)
		}
		if waited := time.Since(start); waited > time.Second {
			w.t.Errorf("GC and DEL took %s", waited)
		}
		w.pod("late", "u2")
		later := nodetest.Attachment("later", "u3")
		later.Spec.Interfaces[0].Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
		w.api.put(later)
		for range 2 {
			if err := <-added; err != nil {
				w.t.Errorf("ADD: %v", err)
			}
		}
		settle()
		w.wantLinks("c2/eth0")
	})
}
