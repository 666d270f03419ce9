package answer

import (
	"encoding/json"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/run"
)

// maxShown is the length of a wrong value in a message, in bytes.
const maxShown = 256

// gcKeys are the keys of the list of valid attachments. The first is the key of the
// specification, the second was in it by mistake (cni#1101). libcni sends both.
var gcKeys = []string{"cni.dev/valid-attachments", "cni.dev/attachments"}

// ValidSandboxes returns the container IDs that are still in use, from the configuration
// of a GC. listed is false if the configuration has no list of them, or disables GC. A
// list that is null counts as empty: libcni encodes the list of an unused network so.
// Errors: cniproto.Error with code 6 if the configuration cannot be decoded,
// fault.ErrInvalid, with the field, if a value is wrong.
func ValidSandboxes(config []byte) (valid map[string]bool, listed bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, false, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	disabled := false
	if raw, ok := fields["disableGC"]; ok {
		if err := json.Unmarshal(raw, &disabled); err != nil {
			return nil, false, fault.Errorf(fault.ErrInvalid, "disableGC: %s: must be true or false", run.ClipTo(string(raw), maxShown))
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
		listed = true
		var list []struct {
			ContainerID string `json:"containerID"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, false, fault.Errorf(fault.ErrInvalid, `%s: %s: must be a list of {"containerID": ..., "ifname": ...}`, key, run.ClipTo(string(raw), maxShown))
		}
		for n, a := range list {
			// Without an ID the entry may mean any sandbox, so none is removed.
			if a.ContainerID == "" {
				return nil, false, fault.Errorf(fault.ErrInvalid, "%s[%d].containerID: missing", key, n)
			}
			valid[a.ContainerID] = true
		}
	}
	return valid, listed, nil
}
