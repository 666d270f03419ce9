package slim

import (
	"strings"
	"sync"
)

// maxWords bounds the memory of words that no object has any more: from there on
// a table is begun anew.
const maxWords = 1 << 16

// words has one copy of each word that many objects have in common.
type words struct {
	mu    sync.Mutex
	known map[string]string
}

// of returns the copy of a word.
func (w *words) of(word []byte) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if same, ok := w.known[string(word)]; ok { // which does not allocate
		return same
	}
	return w.learn(string(word))
}

// share replaces strings by the copy that all equal ones have.
func (w *words) share(texts ...*string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range texts {
		if same, ok := w.known[*s]; ok {
			*s = same
		} else {
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

// pack puts the strings of one object into one piece of memory, each text that
// is part of a former one as that part. Single strings would lie between others
// that nobody has any more, and keep their memory.
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
