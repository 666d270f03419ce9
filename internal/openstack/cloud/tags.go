package cloud

import (
	"context"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
)

// Tag is the tag of everything that this cluster made: "fairlead:cluster=NAME".
func (c *Cloud) Tag() string { return c.api.tag }

// addTags gives an object the tags that it lacks, and returns all that it has then. Clouds
// drop tags that are in the request that creates an object.
func (a *api) addTags(ctx context.Context, resource, id string, have, want []string) ([]string, error) {
	all := slices.Clone(have)
	for _, t := range want {
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	if len(all) == len(have) {
		return have, nil
	}
	err := a.do(ctx, "tag "+noun(resource), func(ctx context.Context) error {
		return attributestags.ReplaceAll(ctx, a.neutron, resource, id, attributestags.ReplaceAllOpts{Tags: all}).Err
	}, id)
	return all, err
}

// tagged returns an object with this cluster's tag: as it is if it has the tag, and
// otherwise read again after it got it.
func tagged[T any, R answer](
	ctx context.Context, a *api, resource string, has tags, as T, get func(context.Context, *gophercloud.ServiceClient, string) R,
) (T, error) {
	all, err := a.addTags(ctx, resource, has.id, has.tags, []string{a.tag})
	if err != nil || len(all) == len(has.tags) {
		return as, err
	}
	return read[T](ctx, a, noun(resource), has.id, get)
}

// tags are those of an object.
type tags struct {
	id   string
	tags []string
}

// isOurs reports whether this cluster made an object without an atomic mark: by its tag, or
// by the description that it got with its creation if the tag was never put.
func (a *api) isOurs(tags []string, description string) bool {
	return slices.Contains(tags, a.tag) || strings.HasSuffix(description, a.mark())
}

// mark is the end of the description of objects of this cluster.
func (a *api) mark() string { return "[" + a.tag + "]" }

// describe returns a description that bears the mark of this cluster.
func (a *api) describe(text string) string {
	if text == "" {
		return a.mark()
	}
	return text + " " + a.mark()
}

// noun returns the singular of a resource of the API, as "security group".
func noun(resource string) string {
	return strings.ReplaceAll(strings.TrimSuffix(resource, "s"), "-", " ")
}
