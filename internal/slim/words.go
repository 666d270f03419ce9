package slim

import (
	"strings"
	"sync"
)

// maxWords limits the memory of words that no object has any more. At the limit the
// table starts empty again.
const maxWords = 1 << 16

// maxWord is the length of the longest common string, in bytes. Others choose the length of a
// message, and would fill the table.
const maxWord = 256

// words has one copy of each string that many objects have.
type words struct {
	mu    sync.Mutex
	known map[string]string
}

// of returns the common copy of a word.
func (w *words) of(word []byte) string {
	if len(word) > maxWord {
		return string(word)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if same, ok := w.known[string(word)]; ok { // this conversion does not allocate
		return same
	}
	return w.learn(string(word))
}

// share replaces each string by the common copy of all equal strings.
func (w *words) share(texts ...*string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range texts {
		if same, ok := w.known[*s]; ok {
			*s = same
		} else if len(*s) <= maxWord {
			w.learn(*s)
		}
	}
}

func (w *words) learn(word string) string {
	if w.known == nil || len(w.known) == maxWords {
		w.known = map[string]string{}
	}
	w.known[word] = word
	return word
}

// pack puts the strings of one object into one piece of memory. A string that is part
// of an earlier one shares its bytes. Separate strings would lie between strings of
// deleted objects, whose memory could then not be released.
func pack(texts ...*string) {
	var all strings.Builder
	n := 0
	for _, s := range texts {
		n += len(*s)
	}
	all.Grow(n)
	for _, s := range texts {
		at := strings.Index(all.String(), *s)
		if at < 0 {
			at = all.Len()
			all.WriteString(*s)
		}
		*s = all.String()[at : at+len(*s)]
	}
}
