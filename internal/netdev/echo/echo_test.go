package echo

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/nettest"
)

// A pod with the address of a request gets its reply, and the secret in it. With that it
// could have replied in the name of other nodes, as if packets to them arrived (own review,
// probes of direct traffic).
func TestReplyToAnotherRequest(t *testing.T) {
	pod, near, far := nettest.Addr("10.244.1.0"), nettest.Addr("192.0.2.1"), nettest.Addr("192.0.2.2")
	e := newEchoes([]Request{{pod, near}, {pod, far}})
	e.note(reply{from: near, to: pod, sequence: 0, nonce: e.nonces[0]})
	e.note(reply{from: far, to: pod, sequence: 1, nonce: e.nonces[0]})
	e.note(reply{from: near, to: pod, sequence: 1, nonce: e.nonces[1]})
	e.note(reply{from: far, to: pod, sequence: 2, nonce: e.nonces[1]})
	if diff := cmp.Diff([]Answer{Answered, Unanswered}, e.answers); diff != "" {
		t.Error(diff)
	}
	e.note(reply{from: far, to: pod, sequence: 1, nonce: e.nonces[1]})
	if e.answers[1] != Answered {
		t.Error("a genuine reply does not count")
	}
}

func FuzzParseReply(f *testing.F) {
	e := newEchoes([]Request{{nettest.Addr("10.0.0.1"), nettest.Addr("10.0.0.2")}})
	f.Add(append(slices.Concat([]byte{0x45}, make([]byte, ipv4Header-1)), e.message(0)...), true)
	f.Add(append(slices.Concat([]byte{0x60}, make([]byte, ipv6Header-1)), e.message(0)...), false)
	f.Add([]byte{0x4f}, true)
	f.Fuzz(func(t *testing.T, packet []byte, is4 bool) {
		r, ok := parseReply(packet, is4)
		if ok && (len(r.nonce) != nonceBytes || r.from.Is4() != is4 || r.to.Is4() != is4) {
			t.Errorf("%x is parsed as %+v", packet, r)
		}
	})
}
