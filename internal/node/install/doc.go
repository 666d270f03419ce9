// Package install puts the CNI plugin and its network configuration where the runtime
// finds them, and takes them and the daemon's state away again.
package install
