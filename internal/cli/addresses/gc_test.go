package addresses

import (
	"testing"

	"fairlead.dev/fairlead/test/clitest"
)

// Only nodes that are gone have entries that are about to be removed.
func TestNodesOfGC(t *testing.T) {
	snap := clitest.WithLostNode(clitest.OnOpenStack())
	living := *snap.Nodes[len(snap.Nodes)-1].DeepCopy()
	living.Name, living.DeletionTimestamp = "node-8", nil
	freed := *snap.Nodes[len(snap.Nodes)-1].DeepCopy()
	freed.Name, freed.Finalizers = "node-7", []string{"another"}
	snap.Nodes = append(snap.Nodes, living, freed)
	v := buildGC(auditOf(clitest.Sound()), snap)
	if len(v.Nodes) != 1 || v.Nodes[0].Name != "node-9" || v.OK {
		t.Errorf("nodes %+v, OK %v", v.Nodes, v.OK)
	}
}
