package sim

// Break names something that is broken on purpose, to see that it is caught.
type Break string

// The ways to break the world.
const (
	// BlindUpdates: the API takes updates of blocks whatever their
	// resourceVersion.
	BlindUpdates Break = "updates without resourceVersion"
	// StaleReads: the live read of a block answers from a cache, as if new.
	StaleReads Break = "stale reads"
	// LostReplyIsFailure: a create of a record whose reply is lost is taken
	// for one that failed, and what was obtained for it is given back.
	LostReplyIsFailure Break = "lost reply is failure"
	// FreeAnyones: an address is freed whoever has it.
	FreeAnyones Break = "free without holder check"
	// UndoneHalves: when one address of several is not left, the others are
	// given back at once.
	UndoneHalves Break = "halves are undone"
	// NoCooldown: freed addresses are handed out at once.
	NoCooldown Break = "no cooldown"
	// NoMask: gateways, excludes and edges are handed out.
	NoMask Break = "no mask"
	// NoWordNeeded: records are released without the node's word.
	NoWordNeeded Break = "no word needed"
	// Hearsay: what a leader remembers of a pod that is gone is written down
	// without a look at the blocks.
	Hearsay Break = "hearsay"
	// ImpatientHeirs: a pod whose claim another still has takes it from him.
	ImpatientHeirs Break = "impatient heirs"
	// BelievedMirrors: a pod whose annotation names another pod's UID is taken for
	// that one.
	BelievedMirrors Break = "believed mirrors"
	// NoHold: claims keep nothing when their pods are gone.
	NoHold Break = "no hold"
	// OneStopsAll: what failed is tried until it succeeds before anything else is.
	OneStopsAll Break = "one stops all"
	// BlindStart: a leader begins without a look at what records name.
	BlindStart Break = "blind start"
	// RunByWallAhead and RunByWallBehind: durations are measured by a wall clock, which
	// jumps ahead, or back.
	RunByWallAhead  Break = "a wall clock that jumps ahead"
	RunByWallBehind Break = "a wall clock that jumps back"
	// NodesByStamps: records do not say which Node they were made for, so that its age
	// tells, by the API server's clock, which jumps back.
	NodesByStamps Break = "nodes by stamps"
	// BlocksStay: nobody looks whether the blocks of a node that is there are idle.
	BlocksStay Break = "blocks stay"
	// NoBound: a node may have as many blocks as it likes.
	NoBound Break = "no bound"
	// AnyNode: pods are served whether or not their Node exists.
	AnyNode Break = "any node"
	// NoReservations: reservations are not seen.
	NoReservations Break = "no reservations"
)
