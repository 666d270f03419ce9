// Package policies tests enforcers of network policies of other projects on the network of
// Fairlead. Its tests make nodes and pods of network namespaces, with the bridge, the routes
// and the packet filter of the node daemon.
//
// The enforcers are programs of nested modules: controller is kube-network-policies.
package policies
