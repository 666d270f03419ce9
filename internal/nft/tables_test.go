package nft

import (
	"strings"
	"testing"
)

// calico#11750, kubernetes#136786: a plain type that nft 1.1.2 or later declares makes an
// nft before 1.1.2 on the same node crash, whichever table it reads. Several versions
// share a node: in our image, in kube-proxy's, and on the host.
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
