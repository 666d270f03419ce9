package delegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
)

// decode decodes the result of a plugin, of any version, into CNI version 1.1.0. The
// result names the interface in the sandbox, also if the plugin has left that out. An
// address without the index of an interface gets the last interface of the name.
func decode(raw []byte, m plug.Made) (*types100.Result, error) {
	out, err := parseResult(raw, m.Plugins.List.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("its result: %w", err)
	}
	res, err := types100.NewResultFromResult(out)
	if err != nil {
		return nil, fmt.Errorf("its result: %w", err)
	}
	own := -1
	for n, i := range res.Interfaces {
		if i.Name == m.Name && i.Sandbox != "" {
			own = n
		}
	}
	if own < 0 {
		own = len(res.Interfaces)
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: m.Name, Sandbox: m.Namespace.Path})
	}
	for _, ip := range res.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(res.Interfaces) {
			ip.Interface = new(own)
		}
	}
	return res, nil
}

// parseResult parses a result. If it has no version, it is that of the list (cni#895).
func parseResult(raw []byte, version string) (cnitypes.Result, error) {
	var lists struct {
		Interfaces []json.RawMessage `json:"interfaces"`
		IPs        []json.RawMessage `json:"ips"`
		Routes     []json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal(raw, &lists); err != nil {
		return nil, fmt.Errorf("must be a JSON object: %w", err)
	}
	for _, list := range [][]json.RawMessage{lists.Interfaces, lists.IPs, lists.Routes} {
		if slices.ContainsFunc(list, func(r json.RawMessage) bool { return string(r) == "null" }) {
			return nil, errors.New("interfaces, ips and routes must have no null") // the library would panic
		}
	}
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("must be a JSON object: %w", err)
	}
	if given, ok := all["cniVersion"].(string); ok && given != "" {
		return create.Create(given, raw)
	}
	if all == nil { // null
		all = map[string]any{}
	}
	all["cniVersion"] = version
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return create.Create(version, raw)
}

// recorded returns the result of the ADD of an interface, nil if it has not succeeded.
func recorded(m plug.Made) (*types100.Result, error) {
	if len(m.Plugins.Result) == 0 {
		return nil, nil
	}
	out, err := create.CreateFromBytes(m.Plugins.Result)
	if err != nil {
		return nil, fmt.Errorf("decode the recorded result: %w", err)
	}
	return types100.GetResult(out)
}

// inVersion returns a result in a CNI version.
func inVersion(res *types100.Result, version string) (json.RawMessage, error) {
	same := *res
	same.Interfaces = make([]*types100.Interface, len(res.Interfaces))
	for n, i := range res.Interfaces { // Encode changes them
		same.Interfaces[n] = i.Copy()
	}
	return answer.Encode(&same, version)
}
