package ui

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestContrast checks the colours of both themes by the WCAG: 4.5 for text, 3 for cells.
func TestContrast(t *testing.T) {
	text, err := page.ReadFile("page/style.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(text), "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("there is no dark theme")
	}
	dark, _, _ = strings.Cut(dark, "* { box-sizing")
	for theme, rules := range map[string]string{"light": light, "dark": dark} {
		colours := map[string][3]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(rules, -1) {
			n, err := strconv.ParseUint(m[2], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			colours[m[1]] = [3]float64{float64(n >> 16), float64(n >> 8 & 255), float64(n & 255)}
		}
		for _, tt := range []struct {
			least       float64
			on          string
			foregrounds []string
		}{
			{4.5, "surface", []string{"text", "quiet", "failing", "plugged"}},
			{4.5, "ground", []string{"text", "quiet"}},
			{4.5, "wash-bad", []string{"text", "quiet"}},
			{4.5, "wash-wait", []string{"text", "quiet"}},
			{4.5, "wash-good", []string{"text", "quiet"}},
			{4.5, "hover", []string{"text", "quiet"}},
			{3, "surface", []string{"waiting", "leaving", "lost", "held", "good", "focus"}},
			{3, "free", []string{"plugged", "held"}},
		} {
			for _, name := range tt.foregrounds {
				a, known := colours[name]
				b, ground := colours[tt.on]
				if !known || !ground {
					t.Fatalf("%s: no colour %s or %s", theme, name, tt.on)
				}
				if got := contrast(a, b); got < tt.least {
					t.Errorf("%s: %s on %s has a contrast of %.2f, at least %.1f", theme, name, tt.on, got, tt.least)
				}
			}
		}
	}
}

// contrast returns the ratio of the luminances of two colours.
func contrast(a, b [3]float64) float64 {
	x, y := luminance(a)+0.05, luminance(b)+0.05
	return max(x, y) / min(x, y)
}

func luminance(c [3]float64) float64 {
	linear := func(v float64) float64 {
		if v /= 255; v <= 0.03928 {
			return v / 12.92
		}
		return math.Pow((v+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(c[0]) + 0.7152*linear(c[1]) + 0.0722*linear(c[2])
}
