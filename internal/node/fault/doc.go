// Package fault has the kinds of error of a request, and gives each error its CNI error
// code.
package fault
