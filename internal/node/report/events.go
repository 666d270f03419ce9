package report

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/warn"
)

// ReportEvery is the shortest time between two events of a pod with the same reason. A runtime
// repeats a failing request every few seconds.
const ReportEvery = 5 * time.Minute

// NewWarnings returns the warning events of a node. A node may create events, and change none.
func NewWarnings(api warn.Creator, node string) *warn.Teller {
	return warn.New(warn.Config{Writer: api, Controller: "fairlead.dev/node", Instance: node, Every: ReportEvery})
}

// Warn warns the owner of a pod, unless the pod had an event with that reason within
// ReportEvery.
func Warn(by *warn.Teller, of ledger.Pod, reason, note string) {
	by.Tell(corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: of.Namespace, Name: of.Name, UID: of.UID}, reason, reason, "PlugPod", note)
}
