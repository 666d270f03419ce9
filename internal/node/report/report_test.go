package report

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
)

// maxNote is the longest text of an event, in bytes, that the API server accepts.
const maxNote = 1024

// created has the events that a node creates.
type created chan *eventsv1.Event

func (c created) CreateEvent(_ context.Context, e *eventsv1.Event) error {
	c <- e
	return nil
}

// eventOf returns the event of a warning.
func eventOf(t *testing.T, of ledger.Pod, note string) *eventsv1.Event {
	t.Helper()
	api := make(created, 1)
	warnings := NewWarnings(api, "n1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = warnings.Start(ctx) }()
	Warn(warnings, of, "Failed", note)
	return <-api
}

// A message that is too long is cut between two characters: the API server rejects text
// that is not UTF-8.
func TestNoteIsCutBetweenCharacters(t *testing.T) {
	for name, note := range map[string]string{
		"two bytes each":   strings.Repeat("ü", maxNote),
		"odd":              "x" + strings.Repeat("ü", maxNote),
		"not UTF-8 at all": strings.Repeat("\xff", 3) + "pod",
	} {
		got := eventOf(t, ledger.Pod{}, note).Note
		if !utf8.ValidString(got) || len(got) > maxNote || len(got) < min(len(note), maxNote)-3 {
			t.Errorf("%s: a note of %d bytes, valid %v", name, len(got), utf8.ValidString(got))
		}
	}
}

// The API server accepts the name of every event, also if the pod has the longest name,
// or if its name is cut right after a dot or a dash.
func TestNamesOfEvents(t *testing.T) {
	for _, pod := range []string{
		"p", "web-0", "a.b", strings.Repeat("a", 253),
		strings.Repeat("a", 235) + strings.Repeat(".b", 9), strings.Repeat("a", 234) + "--" + strings.Repeat("b", 17),
	} {
		e := eventOf(t, ledger.Pod{Namespace: "ns", Name: pod}, "")
		if wrong := validation.NameIsDNSSubdomain(e.Name, false); len(wrong) > 0 || e.GenerateName != "" {
			t.Errorf("pod %s: an event with the name %q and generateName %q: %v", pod, e.Name, e.GenerateName, wrong)
		}
		if cut := strings.TrimRight(pod[:min(len(pod), 236)], "-."); !strings.HasPrefix(e.Name, cut+".") {
			t.Errorf("pod %s: the name %q of its event does not begin with %s", pod, e.Name, cut)
		}
		at := e.EventTime.Time
		if a, b := run.EventName(pod, at), run.EventName(pod, at.Add(1)); a >= b {
			t.Errorf("pod %s: %q is not before %q, which is of a nanosecond later", pod, a, b)
		}
	}
}

func TestEventIsWhole(t *testing.T) {
	e := eventOf(t, ledger.Pod{Namespace: "ns", Name: "p"}, strings.Repeat("x", 2*maxNote))
	if len(e.Note) != maxNote || e.EventTime == (metav1.MicroTime{}) || e.ReportingController == "" || e.Action == "" {
		t.Errorf("event %+v", e)
	}
}
