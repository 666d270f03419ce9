package answer

import (
	"encoding/json"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/fault"
)

// gcKeys are where a runtime says which attachments are valid. The first is the
// specification's, the second is what it once said by mistake (cni#1101); libcni
// sends both.
var gcKeys = []string{"cni.dev/valid-attachments", "cni.dev/attachments"}

// ValidSandboxes reads the container IDs that are still in use from the
// configuration of a GC. told is false when it does not say, or says that there
// is to be no GC. A list that is null is an empty one: libcni encodes that of a
// network that no pod uses so.
func ValidSandboxes(config []byte) (valid map[string]bool, told bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, false, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	disabled := false
	if raw, ok := fields["disableGC"]; ok {
		if err := json.Unmarshal(raw, &disabled); err != nil {
			return nil, false, fault.Errorf(fault.ErrInvalid, "disableGC: %s: must be true or false", clip(raw))
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
			return nil, false, fault.Errorf(fault.ErrInvalid, `%s: %s: must be a list of {"containerID": ..., "ifname": ...}`, key, clip(raw))
		}
		for n, a := range list {
			// One that cannot be read may be any sandbox, so none is let go.
			if a.ContainerID == "" {
				return nil, false, fault.Errorf(fault.ErrInvalid, "%s[%d].containerID: missing", key, n)
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
