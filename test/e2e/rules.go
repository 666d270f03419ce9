package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const nftTable = "fairlead"

// nodeSets are the sets of our tables that have elements without any pod; the elements of
// all other sets belong to pods.
var nodeSets = []string{"revision", "local4", "local6", "cluster4", "cluster6", "tunnel4", "tunnel6", "peers4", "peers6", "own4", "own6"}

// podElements returns the elements of pods in our packet filter, from the output of `nft
// --json list sets` or `list maps`.
func podElements(printed []byte) ([]string, error) {
	type set struct {
		Family, Name, Table string
		Elem                []json.RawMessage
	}
	var list struct {
		NFTables []struct{ Set, Map *set } `json:"nftables"`
	}
	if err := json.Unmarshal(printed, &list); err != nil {
		return nil, fmt.Errorf("what nft prints: %w", err)
	}
	var out []string
	for _, item := range list.NFTables {
		for _, s := range []*set{item.Set, item.Map} {
			if s == nil || s.Table != nftTable || slices.Contains(nodeSets, s.Name) {
				continue
			}
			for _, element := range s.Elem {
				out = append(out, fmt.Sprintf("nft element %s of %s %s", element, s.Family, s.Name))
			}
		}
	}
	return out, nil
}

// elements returns the elements of pods in the node's packet filter.
func (n *node) elements(ctx context.Context) ([]string, error) {
	var out []string
	for _, what := range []string{"sets", "maps"} {
		printed, err := n.processes.Run(ctx, n.place().do, "nft", "--json", "list", what)
		if err != nil {
			return nil, err
		}
		more, err := podElements([]byte(printed))
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// withoutBlocks returns the routes, in the form of netlab.State, whose destination is no
// block of a node.
func withoutBlocks(routes []string, blocks map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(routes), func(route string) bool {
		destination, _, _ := strings.Cut(route, " ")
		return blocks[destination]
	})
}

// blocks returns the blocks that are routed to the nodes.
func (w *testbed) blocks(ctx context.Context) (map[string]bool, error) {
	list := &v1alpha1.NodeNetworkList{}
	if err := w.List(ctx, list); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, item := range list.Items {
		for _, block := range item.Spec.Blocks {
			prefix, err := netip.ParsePrefix(block)
			if err != nil {
				return nil, fmt.Errorf("block of NodeNetwork %s: %w", item.Name, err)
			}
			out[prefix.String()] = true
		}
	}
	return out, nil
}
