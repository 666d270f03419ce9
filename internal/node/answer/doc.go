// Package answer reads what a runtime asks for and writes the results that answer it.
// It touches neither the kernel nor the API server.
package answer
