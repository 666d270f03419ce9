// Package fault names what can go wrong with a request, and gives each error its CNI
// error code.
package fault
