package whereabouts

import (
	"fmt"
	"strings"
	"testing"
)

// A tenant writes a network of the largest size. Its limits count before the work that they bound.
// Warnings and errors about it are short: many pods have them in their events.
func TestWorkAndTextAreBounded(t *testing.T) {
	many := func(n int, element string) string { return strings.TrimSuffix(strings.Repeat(element+",", n), ",") }
	addresses := make([]string, 1300)
	for i := range addresses {
		addresses[i] = fmt.Sprintf(`{"address":"200::%x/9"}`, i+1)
	}
	for name, section := range map[string]string{
		"ranges and addresses": `{"type":"whereabouts","ipRanges":[` + many(4850, `{"range":"200::/9"}`) + `],"addresses":[` + strings.Join(addresses, ",") + `]}`,
		"excludes":             `{"type":"whereabouts","range":"10.0.0.0/24","exclude":[` + many(40_000, `""`) + `]}`,
		"excludes outside":     `{"type":"whereabouts","range":"10.0.0.0/24","exclude":[` + many(8_000, `"10.1.0.0/24"`) + `]}`,
		"a long exclude":       `{"type":"whereabouts","range":"10.0.0.0/24","exclude":["` + strings.Repeat("x", 100_000) + `"]}`,
	} {
		c, warnings, err := Parse([]byte(section), nil)
		if told := len(strings.Join(warnings, "")); told > 8<<10 {
			t.Errorf("%s: %d bytes of warnings", name, told)
		}
		switch name {
		case "excludes outside":
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if err == nil || len(err.Error()) > 8<<10 || len(c.Ranges) > 1 {
				t.Errorf("%s: %d ranges, error %.200v", name, len(c.Ranges), err)
			}
		}
	}
}
