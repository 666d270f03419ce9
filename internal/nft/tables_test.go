package nft

import (
	"strings"
	"testing"
)

// calico#11750, kubernetes#136786: what nft 1.1.2 or later declares as one plain
// type makes one before 1.1.2 on the same node crash, in whatever table that one
// was to look at. Several versions share a node: that of our image, of
// kube-proxy's, and of the host.
func TestSetsThatOlderNftReads(t *testing.T) {
	for _, s := range sets {
		if (s.typ == "") == (s.typeOf == "") {
			t.Errorf("set %s has the type %q and the expressions %q: one of them is wanted", s.name, s.typ, s.typeOf)
		}
		for part := range strings.SplitSeq(s.typ, " : ") {
			if part != "" && !strings.Contains(part, " . ") {
				t.Errorf("set %s is declared with the plain type %q, wanted an expression of this type (typeof)", s.name, part)
			}
		}
	}
}
