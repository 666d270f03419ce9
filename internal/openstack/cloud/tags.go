package cloud

import (
	"context"
	"net/http"
	"slices"
	"strings"
)

// Tag is the tag of everything that this cluster made: "fairlead:cluster=NAME".
func (c *Cloud) Tag() string { return c.tag }

// addTags gives an object the tags that it lacks, and returns all that it has then. Clouds
// drop tags that are in the request that creates an object.
func (c *Cloud) addTags(ctx context.Context, resource, id string, have, want []string) ([]string, error) {
	all := slices.Clone(have)
	for _, t := range want {
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	if len(all) == len(have) {
		return have, nil
	}
	err := c.do(ctx, request{
		call: "tag " + noun(resource), method: http.MethodPut, path: []string{resource, id, "tags"},
		body: map[string]any{"tags": all},
	})
	return all, err
}

// isOurs reports whether this cluster made an object without an atomic mark: by its tag, or
// by the description that it got with its creation if the tag was never put.
func (c *Cloud) isOurs(tags []string, description string) bool {
	return slices.Contains(tags, c.tag) || strings.HasSuffix(description, c.mark())
}

// mark is the end of the description of objects of this cluster.
func (c *Cloud) mark() string { return "[" + c.tag + "]" }

// describe returns a description that bears the mark of this cluster.
func (c *Cloud) describe(text string) string {
	if text == "" {
		return c.mark()
	}
	return text + " " + c.mark()
}

// joinTags returns the filter for objects with all of the tags.
func joinTags(tags []string) string { return strings.Join(tags, ",") }
