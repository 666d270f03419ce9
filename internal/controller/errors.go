package controller

import (
	"fairlead.dev/fairlead/internal/driver"
)

// reasonOf is the event reason of a failed ensure, by the driver's sentinel.
// Every failure is retried with backoff up to half a minute, and at once when
// a pool changes; the reason tells a person whether waiting will help.
func reasonOf(err error) string {
	switch result := driver.Result(err); result {
	case "Unknown":
		return "NetworkNotReady"
	default:
		return "Network" + result
	}
}
