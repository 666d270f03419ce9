package sim

// Break names a part that is broken on purpose, to show that the checks detect it.
type Break string

// The parts that can be broken.
const (
	// BlindUpdates: the API takes updates of blocks whatever their
	// resourceVersion.
	BlindUpdates Break = "updates without resourceVersion"
	// StaleReads: the live read of a block answers from a cache, as if new.
	StaleReads Break = "stale reads"
	// LostReplyIsFailure: a create of a record whose reply is lost counts as failed, and
	// the interfaces that were obtained for it are released.
	LostReplyIsFailure Break = "lost reply is failure"
	// FreeAnyHolder: an address is freed whatever its holder is.
	FreeAnyHolder Break = "free without holder check"
	// UndoParts: if one address of several cannot be taken, the others are released at
	// once.
	UndoParts Break = "parts are undone"
	// NoCooldown: freed addresses are handed out at once.
	NoCooldown Break = "no cooldown"
	// IgnoreExcludes: gateways, excludes and edges are handed out.
	IgnoreExcludes Break = "excludes ignored"
	// NoProofNeeded: records are released without the node's Detached.
	NoProofNeeded Break = "no proof needed"
	// ConfirmUnread: a record for the addresses of a pod that is gone is written from the
	// leader's memory, without a read of the blocks.
	ConfirmUnread Break = "confirm without reading"
	// TakeFromHolder: a pod takes the addresses of its claim from their present holder.
	TakeFromHolder Break = "take from the holder"
	// JoinAnyClaim: every pod shares the addresses of its claim with their holder.
	JoinAnyClaim Break = "join any claim"
	// TrustMirrors: a pod whose annotation is another pod's UID is taken for that pod.
	TrustMirrors Break = "trust in mirrors"
	// NoHold: claims keep nothing when their pods are gone.
	NoHold Break = "no hold"
	// OneStopsAll: an item that failed is retried until it succeeds, before any other
	// item.
	OneStopsAll Break = "one stops all"
	// StartUncompared: a leader begins without comparing the records with the blocks.
	StartUncompared Break = "start without comparison"
	// RunByWallAhead and RunByWallBehind: durations are measured by a wall clock, which
	// jumps ahead, or back.
	RunByWallAhead  Break = "a wall clock that jumps ahead"
	RunByWallBehind Break = "a wall clock that jumps back"
	// NodesByAge: records do not name their Node's UID, so that the age of the Node
	// decides, by the API server's clock, which jumps back.
	NodesByAge Break = "nodes by age"
	// BlocksStay: the idle blocks of an existing node are never given back.
	BlocksStay Break = "blocks stay"
	// NoBound: the number of a node's blocks is not bounded.
	NoBound Break = "no bound"
	// AnyNode: pods are served whether or not their Node exists.
	AnyNode Break = "any node"
	// NoReservations: reservations are ignored.
	NoReservations Break = "no reservations"
)
