package run

import (
	"fmt"
	"slices"
	"strings"
)

// Few joins the first most texts and appends the count of the rest.
func Few(texts []string, most int) string {
	if more := len(texts) - most; more > 0 {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
