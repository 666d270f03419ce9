// Package sim is a deterministic simulation of everything that gives addresses
// out and takes them back, in a world where all goes wrong.
//
// Real are the code of internal/ipam and internal/ipam/block, the native driver
// with its feed from informers, its reconcilers of claims, of reservations and of nodes,
// the reconciler of internal/controller (ensure, release, proof) and the
// collector of internal/gc. Each of one or two leaders is made of these, and both
// of two believe that they lead, until one loses its term: then it stands by, hears of
// what happens or does not, and leads again later with all that it remembers.
//
// Modelled are the API server with resource versions, finalizers and
// preconditions; informers that are behind, break and list anew; the work queue
// with its retries; nodes with their kubelet and daemon, which plug, unplug, say
// so, reboot, are cut off, are lost, are tainted or deleted by an operator and
// come back; Kubernetes' garbage collection and node lifecycle; and users, who
// make pods, delete them, also by force, make others of the same name, and delete
// the records of pods that live; and people who delete blocks in use, edit slots away or put
// blocks back to an older state, also while no leader lives. Calls to the API time out before their effect, after
// it or long before it comes, are throttled and fail; the API server is killed with all
// that is under way, and then forbids everything for a moment, as it does until it has
// read its roles; leaders crash between any two steps; etcd is restored to an older
// state. Pools overlap, stand in for each other and run out, in one family or both, and
// some pods have a second interface. In some worlds pools are sticky, pods name claims
// and request addresses, and people write, change and delete claims and reservations at
// any moment.
//
// Some pods are mirrors: of static pods, which come again while their sandboxes live, and
// such as any user can make, whose annotation names another pod's UID, or what is none.
//
// The wall clocks of each leader, of each machine and of the API server are wrong by up to
// a year and jump, whatever lives meanwhile; how long each process has run it knows. In a world of a month (TestMonth) machines come
// and are scrapped, and a tenant binds pods to nodes that never were and asks for an
// address in each block.
//
// # Invariants
//
// After every step I1 (who has an address plugged, or a record that lets him plug
// it, is whom the block names), I2 (whoever has a slot was a pod, and what a pod
// left is written down only while it has it), I3 (a record is complete), I4
// (nothing is freed while it is plugged, or while a record names it that has
// neither the node's word nor a proof), I6 and the cooldown, in true time; as time passes
// I7, and that no address cools down for longer than the cooldown from when its leader
// saw it free. No node has more blocks than its pool allows, twice for two leaders.
// Nobody gets what his leader knew to be reserved (I6). What is kept for a claim
// goes to a pod of that claim, is the only address that the pod's leader then
// knows of it in its family, and is given up for a reason only: the claim is
// gone, the time is over, or it has or wants another. A record has the addresses
// that its pod requests; whom a pod is told to wait for is another pod, and it
// has nothing half (I3).
//
// Several times in its life, and at its end, the world heals and comes to rest:
// then every pod that can be served is, one whose record the API refuses for ever
// stops no other (I8), and what leaders count (I7) and what claims and reservations
// say of themselves is so. At the end, when all pods are gone, no address is taken
// and no record is left, and when the claims are gone none is kept (I2).
//
// # Seeds
//
// A seed decides everything: the pool, who comes next, and what becomes of each
// call. One goroutine, the scheduler, does one thing at a time; before the next
// it waits until every goroutine of the leaders is blocked (testing/synctest) on
// a call to the API, which it answers when the seed says so, or on the clock,
// which moves in steps longer than any pause of the store. So
//
//	make sim LIVES=500 SEED=17
//
// shows a failure again. When one answer makes several goroutines go on, Go's
// scheduler decides which of them is first: the worlds run on one processor, one
// at a time and without garbage collection, so that it decides the same again. Of
// 270 seeds none differed, on a busy machine; under the race detector the
// scheduler draws lots, and some do.
//
// # What is not claimed
//
// Whatever a hand takes out of a block is named by a record: a pod that is still obtaining
// its network is known to the block and to its leader alone. A leader that begins after
// such a hand has read the latest records, as from an API server that is not behind. Blocks
// with claims are left alone: what a claim keeps is known to the blocks alone.
//
// I5 is the daemon's, of which there is a model here that cannot fail to unplug: the
// real one has a simulation of its own (TestLives of internal/node), which checks it
// after every step, and I3 and its part of I1 and I4.
//
// After a restore of etcd nothing is known of a sandbox that was plugged after
// the backup: its address may be handed out until its pod is gone. The checks
// leave such a sandbox out. Two leaders at once may give two pods of one claim an
// address each, which both are then the claim's; one is given up after its pod.
// An address that is being taken when somebody reserves it is still handed out.
// What a pod left may be written down when a second leader has freed it since the
// collector read its block; the record goes as it came, and no node plugs it.
//
// Whoever restores etcd raises its revision, as etcd's manual says, takes the
// taints that say that a node is out of service off the nodes that run, and
// restarts the controllers.
//
// One thing that would break I1 or I4 does not happen in this world: a taint that
// says a node is out of service and stays there when it is back.
package sim
