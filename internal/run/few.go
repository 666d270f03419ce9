package run

import (
	"fmt"
	"slices"
	"strings"
)

// Few joins the first texts, at most so many, and counts the rest.
func Few(texts []string, most int) string {
	if more := len(texts) - most; more > 0 {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
