package node

import (
	"encoding/json"
	"errors"
)

// merge applies a JSON merge patch (RFC 7386) to an object.
func merge[T any](into *T, patch []byte) error {
	raw, err := json.Marshal(into)
	if err != nil {
		return err
	}
	var have, change map[string]any
	if err := errors.Join(json.Unmarshal(raw, &have), json.Unmarshal(patch, &change)); err != nil {
		return err
	}
	mergeMap(have, change)
	if raw, err = json.Marshal(have); err != nil {
		return err
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return err
	}
	*into = out
	return nil
}

func mergeMap(have, change map[string]any) {
	for k, v := range change {
		sub, isMap := v.(map[string]any)
		old, wasMap := have[k].(map[string]any)
		switch {
		case v == nil:
			delete(have, k)
		case isMap && wasMap:
			mergeMap(old, sub)
		case isMap:
			fresh := map[string]any{}
			mergeMap(fresh, sub)
			have[k] = fresh
		default:
			have[k] = v
		}
	}
}
