package hostnet

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
)

// RulesChanged starts a round that reads the policies of forward chains, if the change may
// concern one. It is called after each change of the rules of other programs.
func (h *Network) RulesChanged(c host.RuleChange) {
	if c.Base || c.Chain == "" || c.Deleted { // kernels from 6.4 on name no hook of a deleted chain
		h.policyKnown.Store(false)
		h.Kick()
	}
}

// forwardPolicy returns the condition ForwardPolicy. It reads the policies only after a
// change of chains.
func (h *Network) forwardPolicy() *metav1.Condition {
	if h.policyKnown.Swap(true) {
		return h.policy
	}
	h.policy = &metav1.Condition{
		Type: v1alpha1.ConditionForwardPolicy, Status: metav1.ConditionTrue, Reason: "Accept", Message: "no forward chain of nftables has policy drop",
	}
	chains, err := h.kernel.DropPolicies()
	slices.Sort(chains)
	switch {
	case err != nil:
		h.policyKnown.Store(false)
		h.policy.Status, h.policy.Reason, h.policy.Message = metav1.ConditionUnknown, "NotRead", err.Error()
	case len(chains) > 0:
		h.policy.Status, h.policy.Reason = metav1.ConditionUnknown, "Drop"
		h.policy.Message = "policy drop in " + strings.Join(chains, ", ") + ": packets of pods pass only by rules that accept them; " +
			"fairlead check tests it; see docs/operator/network.md, A firewall of the host"
	}
	return h.policy
}
