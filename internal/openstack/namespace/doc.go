// Package namespace gives namespaces networks of their own in OpenStack: a network, a subnet
// of each family and an interface of a router in each subnet. A NamespaceNetwork records them.
//
// The first pod of a namespace has the record created. Reconcile makes the network in
// an order that a crash at any step can resume: each part is found again by its name, the
// network is recorded before it gets subnets, and the router before it gets an interface. A
// record whose namespace is gone is deleted by Kubernetes, and its finalizer
// keeps it until nothing is left in the cloud.
package namespace
