package cli

import (
	"fmt"
	"strings"
)

// barWidth is the number of characters between the brackets of a usage bar.
const barWidth = 20

// usageBar returns a bar of a pool's usage, as "[####~~..............] 25%", with the
// marks of a map. Every share above zero has at least one character. 0% means that
// nothing is used, 100% that everything is.
func usageBar(p poolView) string {
	if p.Usable <= 0 {
		return "[" + strings.Repeat(" ", barWidth) + "]"
	}
	shares := []struct {
		mark rune
		n    int64
	}{{markUsed, p.Allocated}, {markCooling, p.Cooling}, {markHeld, p.Held}, {markReserved, p.Reserved}, {markFree, p.Free}}
	widths := make([]int, len(shares))
	left, largest := barWidth, 0
	for i, s := range shares {
		if s.n > 0 {
			widths[i] = min(barWidth, max(1, int(float64(s.n)/float64(p.Usable)*barWidth)))
		}
		left -= widths[i]
		if widths[i] > widths[largest] {
			largest = i
		}
	}
	widths[largest] = max(0, widths[largest]+left) // the difference left by rounding
	var b strings.Builder
	b.WriteByte('[')
	for i, s := range shares {
		b.WriteString(strings.Repeat(string(s.mark), widths[i]))
	}
	b.WriteString("] " + percent(p.Usable-p.Free, p.Usable))
	return b.String()
}

// percent returns part as a percentage of whole, which is more than zero.
func percent(part, whole int64) string {
	n := int(float64(part) / float64(whole) * 100)
	switch {
	case part > 0 && n == 0:
		return "<1%"
	case part < whole && n >= 100:
		return ">99%"
	}
	return fmt.Sprintf("%d%%", n)
}
