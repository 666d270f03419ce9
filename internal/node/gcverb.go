package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cniproto"
)

// gc lets go what the runtime does not list and what is not alive any more, while no
// ADD and no DEL runs. It goes on over errors and returns all of them as one.
//
// What lives stays, whatever the list says: a runtime sends a GC for every network
// configuration that it finds, with an empty list for one that no pod uses, and the
// name in it may be that of ours. Container IDs alone are compared: the runtime knows
// of one interface, and a sandbox may have more.
func (v *verbs) gc(ctx context.Context, r cniproto.Request) error {
	listed, told, err := validSandboxes(r.Config)
	if err != nil || !told {
		return err
	}
	return v.manager.Alone(ctx, func(ctx context.Context) error {
		return aggregate(v.sweepUnlisted(ctx, listed))
	})
}

// aggregate makes one error for the runtime of what went wrong with several
// sandboxes.
func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	slices.Sort(texts)
	return &cniproto.Error{
		Code:    cniproto.AsError(cniError(errors.Join(errs...))).Code,
		Msg:     "GC is not complete: " + plural(len(errs), "error"),
		Details: strings.Join(texts, "; "),
	}
}

// gcKeys are where a runtime says which attachments are valid. The first is the
// specification's, the second is what it once said by mistake (cni#1101); libcni
// sends both.
var gcKeys = []string{"cni.dev/valid-attachments", "cni.dev/attachments"}

// validSandboxes reads the container IDs that are still in use from the
// configuration of a GC. told is false when it does not say, or says that there
// is to be no GC. A list that is null is an empty one: libcni encodes that of a
// network that no pod uses so.
func validSandboxes(config []byte) (valid map[string]bool, told bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, false, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	disabled := false
	if raw, ok := fields["disableGC"]; ok {
		if err := json.Unmarshal(raw, &disabled); err != nil {
			return nil, false, because(errInvalid, "disableGC: %s: must be true or false", clip(raw))
		}
	}
	if disabled {
		return nil, false, nil
	}
	valid = map[string]bool{}
	for _, key := range gcKeys {
		raw, ok := fields[key]
		if !ok {
			continue
		}
		told = true
		var list []struct {
			ContainerID string `json:"containerID"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, false, because(errInvalid, `%s: %s: must be a list of {"containerID": ..., "ifname": ...}`, key, clip(raw))
		}
		for n, a := range list {
			// One that cannot be read may be any sandbox, so none is let go.
			if a.ContainerID == "" {
				return nil, false, because(errInvalid, "%s[%d].containerID: missing", key, n)
			}
			valid[a.ContainerID] = true
		}
	}
	return valid, told, nil
}

// clip keeps a wrong value from making a message of any length.
func clip(raw []byte) string {
	const most = 256
	if len(raw) <= most {
		return string(raw)
	}
	return string(raw[:most]) + "..."
}
