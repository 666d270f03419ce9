package run

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// EventName names an event of an object as client-go does: a later event has the later
// name in the alphabet, the order in which kubectl shows them. The object's name is cut
// where the whole would be longer than the 253 characters of a name.
func EventName(object string, at time.Time) string {
	stamp := fmt.Sprintf(".%016x", at.UnixNano())
	return strings.TrimRight(object[:min(len(object), validation.DNS1123SubdomainMaxLength-len(stamp))], "-.") + stamp
}
