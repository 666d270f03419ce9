package answer

import (
	"encoding/json"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// ParsePrevResult returns the result of the ADD, which a CHECK must contain in the version
// of the configuration; errors: fault.ErrInvalid if it is missing, cniproto.Error with code
// 6 if it cannot be decoded.
func ParsePrevResult(r cniproto.Request) (*types100.Result, error) {
	var config struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(r.Config, &config); err != nil {
		return nil, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	if raw := string(config.PrevResult); raw == "" || raw == "null" {
		return nil, fault.Errorf(fault.ErrInvalid, "prevResult: missing: CHECK needs the result of the ADD")
	}
	old, err := create.Create(r.CNIVersion(), config.PrevResult)
	if err != nil {
		return nil, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "prevResult: " + err.Error()}
	}
	prev, err := types100.GetResult(old)
	if err != nil {
		return nil, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "prevResult: " + err.Error()}
	}
	return prev, nil
}

// PrevInterface returns the named interface inside the sandbox, nil if the result has none.
func PrevInterface(prev *types100.Result, name string) *types100.Interface {
	for _, i := range prev.Interfaces {
		if i != nil && i.Name == name && i.Sandbox != "" {
			return i
		}
	}
	return nil
}

// PrevAddress reports whether a result has an address.
func PrevAddress(prev *types100.Result, a netip.Prefix) bool {
	for _, ip := range prev.IPs {
		if ip != nil && ip.Address.String() == a.String() {
			return true
		}
	}
	return false
}

// PrevRoute reports whether a result has a route.
func PrevRoute(prev *types100.Result, route plug.Route) bool {
	for _, r := range prev.Routes {
		if r == nil || r.Dst.String() != route.Destination.String() {
			continue
		}
		if gw, _ := netip.AddrFromSlice(r.GW); gw.Unmap() == route.Gateway {
			return true
		}
	}
	return false
}
