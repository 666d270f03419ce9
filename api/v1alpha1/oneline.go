package v1alpha1

import "strings"

// OneLine joins texts with commas, for a column of kubectl. If the result would exceed
// most bytes, it omits the last texts and ends with ",...".
func OneLine(texts []string, most int) string {
	const more = ",..."
	all := strings.Join(texts, ",")
	if len(all) <= most {
		return all
	}
	return all[:max(strings.LastIndexByte(all[:most-len(more)+1], ','), 0)] + more
}
