package v1alpha1

import "strings"

// OneLine lists texts, as many as there is room for in so many bytes: what kubectl prints
// of a list.
func OneLine(texts []string, most int) string {
	const more = ",..."
	all := strings.Join(texts, ",")
	if len(all) <= most {
		return all
	}
	return all[:max(strings.LastIndexByte(all[:most-len(more)+1], ','), 0)] + more
}
