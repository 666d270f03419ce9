// Package sim is a deterministic simulation of all parts that give addresses out and
// release them, in a cluster with every kind of fault.
//
// Real are the code of internal/ipam and internal/ipam/block, the native driver with its
// feed from informers, its reconcilers of claims, of reservations and of nodes, the
// reconciler of internal/controller (ensure, release, proof) and the collector of
// internal/gc. Each of one or two leaders is made of these. If there are two, both
// believe that they lead, until one loses its term. Then it stands by, receives events
// or does not, and leads again later with its whole memory.
//
// Modelled are:
//
//   - the API server with resource versions, finalizers and preconditions,
//   - informers that are behind, break and list anew,
//   - the work queue with its retries,
//   - nodes with their kubelet and daemon. They plug, unplug, report, reboot, are cut off,
//     are lost, are tainted or deleted by an operator, and come back,
//   - Kubernetes' garbage collection and node lifecycle,
//   - users, who create pods, delete them, also by force, create others of the same name,
//     and delete the records of running pods,
//   - people who delete blocks in use, edit slots away, or put blocks back to an older
//     state, while no leader runs.
//
// Calls to the API time out before their effect, after it or long before it, are throttled
// and fail. The API server is killed with all calls in progress. Then it forbids everything
// for a moment, as a real API server does until it has read its roles. Leaders crash
// between any two steps. etcd is restored to an older state. Pools overlap, replace each
// other and run out, in one family or both, and some pods have a second interface. In some
// simulations pools are sticky, pods name claims and request addresses, and people write,
// change and delete claims and reservations at any moment. Pods of virtual machines are
// launchers: most are targets of a live migration, some begin the next instance of their
// machine, and some only imitate a launcher.
//
// Some pods are mirrors: of static pods, which are created again while their sandboxes
// live, and those that any user can create, whose annotation is another pod's UID or not a
// UID at all.
//
// The wall clocks of each leader, of each machine and of the API server are wrong by up to
// a year and jump at any moment. Each process knows how long it has run. In a simulation of
// a month (TestMonth) machines are added and scrapped, and a tenant binds pods to nodes that
// never existed and asks for an address in each block.
//
// # Invariants
//
// These are checked after every step, in true time:
//
//   - I1: an address that is plugged, or that a record allows to plug, belongs to a holder
//     in its block. An address has one holder, or two launchers of one instance of a
//     machine, on two nodes: source and target of a migration.
//   - I2: the holder of a slot was a pod, and a record for the addresses of a pod that is
//     gone is written only while the pod still has them.
//   - I3: a record is complete and has the addresses that its pod requests. A pod that is
//     told to wait for a holder waits for another pod, and has no part of its addresses.
//   - I4: no address is freed while it is plugged, or while a record names it that has
//     neither the node's Detached nor a proof.
//   - I6: no excluded address is handed out, and none that the pod's leader knew to be
//     reserved.
//   - The cooldown: a freed address rests for at least the minimum.
//   - The bound: no node has more blocks than its pool allows, twice as many for two
//     leaders.
//   - The claim: an address that is kept for a claim goes to a pod of the claim, and is the
//     only address of the claim in its family that the pod's leader knew. It is no longer
//     kept only if the claim is gone, its time is over, or it has or wants another address.
//
// As time passes I7 is checked (the counts add up), and that no address cools down for
// longer than the cooldown from when its leader saw it free.
//
// Several times, and at the end, the faults are healed and the cluster comes to rest. Then
// every pod that can be served is served, and a pod whose record the API refuses for ever
// stops no other (I8). The counts of the leaders (I7) and the status of claims and
// reservations are right. At the end, when all pods are gone, no address is taken and no
// record is left; when the claims are gone too, no address is kept (I2).
//
// # Seeds
//
// A seed decides everything: the pool, the order of events, and the outcome of each call.
// One goroutine, the scheduler, does one thing at a time. Before the next it waits until
// every goroutine of the leaders is blocked (testing/synctest). A goroutine blocks on a
// call to the API, which the scheduler answers when the seed decides so, or on the clock,
// which moves in steps longer than any pause of the store. So
//
//	make sim LIVES=500 SEED=17
//
// reproduces a failure. If one answer wakes several goroutines, Go's scheduler decides which
// of them runs first. Therefore the simulations run on one processor, one at a time and
// without garbage collection, so that its decision is the same again. Of 270 seeds none
// differed, on a busy machine; under the race detector the scheduler decides at random, and
// some differ.
//
// # Limits
//
// An edit by hand removes only addresses that a record names: a pod that is still obtaining
// its network is known only to the block and to its leader. A leader that begins after such
// an edit has read the latest records and blocks, as from an API server that is not behind. Blocks with
// claims are not edited: only the blocks know the addresses that a claim keeps.
//
// I5 is the daemon's. The model of the daemon here cannot fail to unplug. The real daemon
// has a simulation of its own (TestLives of internal/node), which checks I5 after every
// step, and also I3 and the daemon's part of I1 and I4.
//
// After a restore of etcd a sandbox that was plugged after the backup is unknown: its
// address may be handed out until its pod is gone. The checks ignore such a sandbox. Two
// leaders at once may give two pods of one claim an address each. Both are then the claim's,
// and one is given up after its pod ends. Two leaders at once may also serve one pod from two
// pools that overlap, if one of them is sticky: the address is then kept for that pool's claim,
// and the record of the other pool names no claim. An address that is reserved while a take of it is
// in progress is still handed out. The collector may write a record for an address that a
// second leader has freed since the collector read its block; the record is deleted again,
// and no node plugs it.
//
// The person who restores etcd raises its revision, as etcd's manual demands, removes the
// out-of-service taints of the nodes that run, and restarts the controllers.
//
// One fault that would break I1 or I4 does not occur: an out-of-service taint that stays on
// a node after the node is back.
package sim
