// Package delegate executes CNI plugins. No other package of Fairlead runs a program.
//
// It keeps no state: the record of a sandbox has the list of the plugins and their result
// (plug.Plugins), so libcni's cache is not used. A plugin that hangs is killed with its
// children at the deadline of its verb.
package delegate
