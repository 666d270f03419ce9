package run

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// EventName returns the name of an event of an object, as client-go does. Names sort by
// time, which is the order in which kubectl shows events. The object's name is truncated
// so that the result has at most 253 characters.
func EventName(object string, at time.Time) string {
	stamp := fmt.Sprintf(".%016x", at.UnixNano())
	return strings.TrimRight(object[:min(len(object), validation.DNS1123SubdomainMaxLength-len(stamp))], "-.") + stamp
}
