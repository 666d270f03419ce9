package kuryr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config is a kuryr.conf, in the form of oslo.config.
type Config struct {
	// Source names the file for people.
	Source string
	// Options by "group.option". An option that is written several times has the last value.
	Options map[string]string
}

// maxConfig is the largest size of a kuryr.conf.
const maxConfig = 1 << 20

// ParseConfig parses a kuryr.conf. Errors: it has no option.
func ParseConfig(raw []byte) (*Config, error) {
	if len(raw) > maxConfig {
		return nil, fmt.Errorf("kuryr.conf has %d bytes: must have at most %d", len(raw), maxConfig)
	}
	c := &Config{Options: map[string]string{}}
	group, last := "DEFAULT", ""
	for line := range strings.Lines(string(raw)) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#' || text[0] == ';':
			last = ""
		case text[0] == '[' && text[len(text)-1] == ']':
			group, last = text[1:len(text)-1], ""
		case last != "" && (line[0] == ' ' || line[0] == '\t'): // goes on with the line before
			c.Options[last] = strings.TrimSpace(c.Options[last] + " " + text)
		default:
			at := strings.IndexAny(text, "=:")
			if at <= 0 {
				continue
			}
			last = group + "." + strings.TrimSpace(text[:at])
			c.Options[last] = strings.TrimSpace(text[at+1:])
		}
	}
	if len(c.Options) == 0 {
		return nil, errors.New("no option: must be a kuryr.conf, as [kubernetes] and pod_vif_driver = neutron-vif")
	}
	return c, nil
}

// list returns the elements of an option that is a list.
func (c *Config) list(option string) []string {
	if c == nil {
		return nil
	}
	var out []string
	for e := range strings.SplitSeq(strings.Trim(c.Options[option], "[]"), ",") {
		if e = strings.Trim(strings.TrimSpace(e), `'"`); e != "" {
			out = append(out, e)
		}
	}
	return out
}

// settings judges the options. Options without an effect on the network, as of logs and of
// access to APIs, are left out. The most important ones are there with Kuryr's default.
func (s State) settings() []Setting {
	if s.Config == nil {
		return nil
	}
	values := maps.Clone(s.Config.Options)
	for name, value := range defaults {
		if _, ok := values[name]; !ok {
			values[name] = value
		}
	}
	var out []Setting
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == "kubernetes.enabled_handlers" {
			out = append(out, handlers(values[name])...)
			continue
		}
		if o, ok := options[name]; ok {
			a := o.of(values[name])
			out = append(out, Setting{Name: name, Value: values[name], Served: a.served, Text: a.text})
		}
	}
	return out
}

// handlers judges each handler of the list.
func handlers(list string) []Setting {
	c := Config{Options: map[string]string{"": list}}
	var out []Setting
	for _, name := range c.list("") {
		a, ok := handlerAnswers[name]
		if !ok {
			a = answer{No, "it is no handler of Kuryr's"}
		}
		out = append(out, Setting{Name: "kubernetes.enabled_handlers", Value: name, Served: a.served, Text: a.text})
	}
	return out
}
